"""Evaluations: create, fill, close, read."""

import asyncio

import pytest

EVALUATIONS = "/api/v1/evaluations"


async def opened(hub, wheel, **fields):
    alice = await hub.person("alice")
    _, steps = await alice.push(wheel())
    body = {"name": "run", "model_name": "m", "environments": [{"id": steps["environment_id"]}]}
    answer = await alice.http.post(f"{EVALUATIONS}/", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return alice, answer.json()["evaluation_id"]


async def test_an_evaluation_from_opening_to_reading(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel, metadata={"num_examples": 2})
    rows = [{"sample_id": f"s{n}", "reward": n / 2, "prompt": [{"role": "user"}]} for n in range(5)]
    pushed = await alice.http.post(f"{EVALUATIONS}/{evaluation_id}/samples", json={"samples": rows})
    assert pushed.json() == {"samples_pushed": 5, "samples_new": 5}
    done = await alice.http.post(
        f"{EVALUATIONS}/{evaluation_id}/finalize", json={"metrics": {"reward": 1.0}}
    )
    assert done.json()["viewer_url"].endswith(f"/dashboard/evaluations/{evaluation_id}")
    got = (await alice.http.get(f"{EVALUATIONS}/{evaluation_id}")).json()
    assert (got["status"], got["total_samples"]) == ("COMPLETED", 5)
    assert (got["environment_names"], got["metrics"]) == (["alice/demo-env"], {"reward": 1.0})
    page = (await alice.http.get(f"{EVALUATIONS}/{evaluation_id}/samples?page=2&limit=2")).json()
    assert page == {"samples": rows[2:4], "total": 5, "page": 2, "limit": 2, "has_more": True}


async def test_an_evaluation_says_the_version_that_ran_and_none_when_nobody_said_which(hub, wheel):
    alice, unknown = await opened(hub, wheel)
    await alice.upload(wheel(version="0.2.0"))
    details = (await alice.http.get("/api/v1/environmentshub/alice/demo-env/@0.1.0")).json()["data"]
    reference = {"id": details["id"], "version_id": details["version_id"]}
    known = {"name": "run", "environments": [reference]}
    known = (await alice.http.post(f"{EVALUATIONS}/", json=known)).json()
    [subject] = known["environments"]
    assert (subject["name"], subject["version"]) == ("alice/demo-env", "0.1.0")
    got = (await alice.http.get(f"{EVALUATIONS}/{unknown}")).json()
    assert got["environments"] == [{**subject, "version": None, "version_id": None}]
    for about, ids in (
        ("alice/demo_env", {unknown, known["id"]}),
        ("demo-env@0.1", {known["id"]}),
        ("alice/demo-env@0.2.0", set()),
    ):
        page = await alice.http.get(f"{EVALUATIONS}/", params={"environment_name": about})
        assert ({row["id"] for row in page.json()["evaluations"]}, page.json()["total"]) == (
            ids,
            len(ids),
        )
    wrong = {"name": "run", "environments": [{"id": details["id"], "version_id": "other"}]}
    assert (await alice.http.post(f"{EVALUATIONS}/", json=wrong)).status_code == 404
    await alice.http.delete("/api/v1/environmentshub/alice/demo-env/@0.1.0")
    got = (await alice.http.get(f"{EVALUATIONS}/{known['id']}")).json()
    assert got["environments"][0]["version"] == "0.1.0", "what ran stays said after it is deleted"


async def test_batches_may_come_in_parallel_and_twice(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel)
    batches = [{"samples": [{"reward": 1.0, "text": "same"}] * 10 + [{"n": n}]} for n in range(6)]
    address = f"{EVALUATIONS}/{evaluation_id}/samples"
    answers = await asyncio.gather(
        *(alice.http.post(address, json=batch) for batch in batches + batches)
    )
    assert {answer.status_code for answer in answers} == {200}
    got = (await alice.http.get(f"{EVALUATIONS}/{evaluation_id}")).json()
    assert got["total_samples"] == 66, "equal rollouts count, repeated batches do not"


async def test_the_same_rollout_in_another_batch_is_one_sample(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel)
    address = f"{EVALUATIONS}/{evaluation_id}/samples"
    for extra in ({"a": 1}, {"b": 2}):
        rows = [{"example_id": 1, "rollout_number": 0}, {"sample_id": "x"}, {**extra, "id": 3}]
        await alice.http.post(address, json={"samples": rows})
    assert (await alice.http.get(f"{EVALUATIONS}/{evaluation_id}")).json()["total_samples"] == 4


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"samples": 1}', b'{"samples": [1]}', b"{}"])
async def test_a_batch_of_another_form_is_refused_with_the_form(small_hub, wheel, body):
    alice, evaluation_id = await opened(small_hub, wheel)
    answer = await alice.http.post(f"{EVALUATIONS}/{evaluation_id}/samples", content=body)
    assert (answer.status_code, "samples" in answer.text) == (400, True)


async def test_a_large_batch_fits_and_a_larger_one_is_refused_unread(open_small_hub, wheel):
    async with open_small_hub(max_batch_bytes=2_000_000) as hub:
        alice, evaluation_id = await opened(hub, wheel)
        address = f"{EVALUATIONS}/{evaluation_id}/samples"
        fits = await alice.http.post(address, json={"samples": [{"text": "x" * 1_900_000}]})
        assert fits.status_code == 200
        too_large = await alice.http.post(address, json={"samples": [{"text": "x" * 2_100_000}]})
        assert too_large.status_code == 413


async def test_a_closed_evaluation_stays_closed(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel)
    address = f"{EVALUATIONS}/{evaluation_id}"
    failed = await alice.http.put(
        address, json={"status": "FAILED", "error_message": "out of memory"}
    )
    assert (failed.json()["status"], failed.json()["error_message"]) == ("FAILED", "out of memory")
    assert (await alice.http.put(address, json={"status": "COMPLETED"})).status_code == 409
    assert (await alice.http.post(f"{address}/finalize", json={})).status_code == 409
    assert (await alice.http.post(f"{address}/samples", json={"samples": [{}]})).status_code == 409


async def test_an_update_keeps_what_it_does_not_name(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel, tags=["a"], metadata={"x": 1}, metrics={"m": 1})
    answer = await alice.http.put(
        f"{EVALUATIONS}/{evaluation_id}", json={"tags": [], "metadata": {"y": 2}}
    )
    got = answer.json()
    assert (got["tags"], got["metrics"]) == (["a"], {"m": 1})
    assert (got["metadata"]["x"], got["metadata"]["y"]) == (1, 2)


async def test_the_list_is_an_object_that_old_clients_can_read(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel)
    for query in ("", "?environment_name=demo-env", "?environment_name=alice/demo_env"):
        answer = (await alice.http.get(f"{EVALUATIONS}/{query}")).json()
        assert (answer["total"], answer["evaluations"][0]["id"]) == (1, evaluation_id)
        assert isinstance(answer["evaluations"][0]["metadata"], dict)
    other = await alice.http.get(f"{EVALUATIONS}/?environment_name=bob/demo-env")
    assert other.json() == {"evaluations": [], "total": 0}


async def test_others_see_public_evaluations_of_environments_they_can_see(hub, wheel):
    alice, evaluation_id = await opened(hub, wheel, is_public=True)
    bob = await hub.person("bob")
    address = f"{EVALUATIONS}/{evaluation_id}"
    assert (await bob.http.get(address)).status_code == 200
    assert (await bob.http.put(address, json={"name": "mine"})).status_code == 403
    assert (await hub.http.get(f"{address}/samples")).status_code == 200
    await alice.http.patch("/api/v1/environmentshub/alice/demo-env", json={"visibility": "PRIVATE"})
    for client in (bob.http, hub.http):
        assert (await client.get(address)).status_code == 404
        assert (await client.get(f"{address}/samples")).status_code == 404
    assert (await alice.http.get(address)).status_code == 200


async def test_evaluating_needs_an_environment_or_a_run(small_hub, wheel):
    alice, _ = await opened(small_hub, wheel)
    answer = await alice.http.post(f"{EVALUATIONS}/", json={"name": "x"})
    assert answer.status_code == 400
    answer = await alice.http.post(f"{EVALUATIONS}/", json={"name": "x", "run_id": "r"})
    assert answer.status_code == 200
    missing = {"name": "x", "environments": [{"id": "nothing"}]}
    assert (await alice.http.post(f"{EVALUATIONS}/", json=missing)).status_code == 404


async def test_traces_are_declined_in_the_words_that_make_clients_send_samples(small_hub):
    answer = await small_hub.http.post("/api/v1/traces", content=b"whatever")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "service_not_enabled"


async def test_hosted_evaluations_are_refused_with_what_to_do(small_hub):
    alice = await small_hub.person("alice")
    answer = await alice.http.post("/api/v1/hosted-evaluations", json={})
    assert (answer.status_code, "vf-eval" in answer.text) == (400, True)
