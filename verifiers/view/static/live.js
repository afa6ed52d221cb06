// A page of a run that is being written asks for its version and takes over the new content when it changes.

const INTERVAL_MS = 2000;

async function update(box) {
  const answer = await fetch(box.dataset.live, { credentials: "same-origin" });
  if (!answer.ok) return;
  const { version, live } = await answer.json();
  if (version === box.dataset.version && live) return;
  if (box.contains(document.activeElement) && document.activeElement.matches("input, textarea")) return;
  const page = await (await fetch(location.href, { credentials: "same-origin" })).text();
  const fresh = new DOMParser().parseFromString(page, "text/html").getElementById("live");
  if (!fresh) return;
  const open = new Set([...box.querySelectorAll("details[open]")].map((item) => item.className));
  fresh.querySelectorAll("details").forEach((item) => { item.open = open.has(item.className); });
  box.replaceWith(fresh);
}

export function followRun() {
  setInterval(() => {
    const box = document.querySelector("#live[data-live]");
    if (box && !document.hidden) update(box).catch(() => {});  // the viewer may have ended
  }, INTERVAL_MS);
}
