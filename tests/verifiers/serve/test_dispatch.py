"""The state machine between clients and workers."""

from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from verifiers.serve.dispatch import Key, RequestDispatch


def dispatch(*, workers: int = 1, capacity: int = 100, max_lone_deaths: int = 2) -> RequestDispatch:
    made = RequestDispatch(capacity=capacity, max_lone_deaths=max_lone_deaths)
    for number in range(workers):
        made.add_worker(f"w{number}")
    return made


def submit(to: RequestDispatch, count: int) -> list[Key]:
    keys = [Key(b"client", b"%d" % number) for number in range(count)]
    for key in keys:
        assert to.submit(key, b"")
    return keys


def test_requests_are_spread_and_kept_below_the_capacity():
    tested = dispatch(workers=2, capacity=3)
    submit(tested, 10)

    assert [job.worker for job in tested.assign()] == ["w0", "w1"] * 3
    assert (tested.assign(), tested.queued) == ([], 4)


def test_a_request_sent_twice_is_taken_once():
    tested = dispatch()
    [key] = submit(tested, 1)

    assert not tested.submit(key, b"")
    assert len(tested.assign()) == 1


def test_what_a_dead_worker_had_is_done_again_and_its_late_answer_is_ignored():
    tested = dispatch(workers=2)
    [key] = submit(tested, 1)
    [job] = tested.assign()
    assert job.worker == "w0"

    assert tested.lose_worker("w0") == []
    assert [again.worker for again in tested.assign()] == ["w1"]
    assert tested.finish("w0", key) is None
    assert tested.finish("w1", key) is job
    assert tested.finish("w1", key) is None


def test_a_poisonous_request_is_found_among_hundreds_and_the_others_finish():
    tested = RequestDispatch(capacity=1000, max_lone_deaths=2)
    keys = submit(tested, 400)
    poison, finished, deaths = keys[217], set(), 0
    quarantined: list[Key] = []
    while len(tested):
        worker = f"w{deaths}"
        tested.add_worker(worker)
        held: list[Key] = []
        while batch := [job.key for job in tested.assign()]:
            held += batch
            if poison in held:
                quarantined += [job.key for job in tested.lose_worker(worker)]
                deaths += 1
                break
            for key in held:
                assert tested.finish(worker, key) is not None
                finished.add(key)
            held = []

    assert quarantined == [poison]
    assert finished == set(keys) - {poison}
    assert deaths == 6  # 400, 100, 25, 6, 1, 1 at once


def test_a_suspect_gets_its_own_worker_although_fresh_requests_keep_coming():
    tested = dispatch(workers=1)
    [suspect] = submit(tested, 1)
    tested.assign()
    tested.lose_worker("w0")
    tested.add_worker("w1")
    first = Key(b"client", b"fresh")
    tested.submit(first, b"")
    assert [job.key for job in tested.assign()] == [suspect]
    assert tested.assign() == []

    tested.finish("w1", suspect)

    assert [job.key for job in tested.assign()] == [first]


def test_a_cancelled_request_is_not_done_again_after_a_death():
    tested = dispatch()
    keys = submit(tested, 2)
    tested.assign()

    job = tested.cancel(keys[0])
    assert job is not None
    assert job.worker == "w0"
    assert tested.cancel(keys[0]) is None
    tested.lose_worker("w0")
    tested.add_worker("w1")

    assert [job.key for job in tested.assign()] == [keys[1]]


class EndsOnce(RuleBasedStateMachine):
    """Whatever happens, each request ends exactly once, and nothing exceeds what may be together."""

    keys = Bundle("keys")
    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.dispatch = RequestDispatch(capacity=4, max_lone_deaths=2)
        self.count = 0
        self.open: set[Key] = set()
        self.cancelled: set[Key] = set()
        self.running: dict[Key, str] = {}
        self.alive: list[str] = []

    @rule(target=keys)
    def submit(self) -> Key:
        self.count += 1
        key = Key(b"c", b"%d" % self.count)
        assert self.dispatch.submit(key, b"")
        self.open.add(key)
        return key

    @rule(target=workers)
    def start_worker(self) -> str:
        self.count += 1
        name = f"w{self.count}"
        self.dispatch.add_worker(name)
        self.alive.append(name)
        return name

    @rule()
    def assign(self) -> None:
        for job in self.dispatch.assign():
            assert job.key not in self.running
            assert job.key in self.open
            assert job.worker in self.alive
            self.running[job.key] = job.worker

    @rule(key=keys)
    def cancel(self, key: Key) -> None:
        told = self.dispatch.cancel(key)
        if key in self.open:
            assert (told is not None) == (key in self.running)
            self.open.discard(key)
            if told is not None:
                self.cancelled.add(key)
        else:
            assert told is None

    @rule(key=keys, name=workers)
    def finish(self, key: Key, name: str) -> None:
        job = self.dispatch.finish(name, key)
        assert (job is not None) == (self.running.get(key) == name)
        if job is not None:
            del self.running[key]
            assert job.is_cancelled == (key in self.cancelled)
            self.open.discard(key)
            self.cancelled.discard(key)

    @rule(name=consumes(workers))
    def die(self, name: str) -> None:
        had = {key for key, worker in self.running.items() if worker == name}
        self.alive.remove(name)
        for job in self.dispatch.lose_worker(name):
            assert had == {job.key}
            self.open.discard(job.key)
        for key in had:
            del self.running[key]
            self.cancelled.discard(key)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert {job.key for job in self.dispatch.jobs()} == self.open | self.cancelled
        assert self.dispatch.queued == len(self.open - set(self.running))

    @invariant()
    def worker_loads_are_allowed(self) -> None:
        for name in self.alive:
            together = [job for job in self.dispatch.jobs() if job.worker == name]
            assert len(together) == self.dispatch.load(name)
            assert all(len(together) <= job.most_together for job in together)

    def teardown(self) -> None:
        """With a worker that stays, everything still open finishes."""
        for name in self.alive:
            self.dispatch.lose_worker(name)
        self.dispatch.add_worker("last")
        while assigned := self.dispatch.assign():
            for job in assigned:
                assert self.dispatch.finish("last", job.key) is job
        assert len(self.dispatch) == 0


TestEndsOnce = EndsOnce.TestCase
