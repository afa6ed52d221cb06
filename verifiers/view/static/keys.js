// Keys: move between messages, rows, rollouts and pages.

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

function marks() {
  const messages = [...document.querySelectorAll(".talk .message")];
  return messages.length ? messages : [...document.querySelectorAll("[data-row]")];
}

function move(step) {
  const all = marks();
  if (!all.length) return;
  const now = all.findIndex((item) => item.classList.contains("current"));
  const next = now < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, now + step));
  all[now]?.classList.remove("current");
  all[next].classList.add("current");
  all[next].scrollIntoView({ block: "nearest", inline: "nearest" });
  (all[next].querySelector("[data-open]") ?? all[next]).focus({ preventScroll: true });
}

// Click the first link that exists.
const follow = (...selectors) => selectors.map((one) => document.querySelector(one)).find(Boolean)?.click();
const fold = (open) => document.querySelectorAll("main details:not(.note):not(.help)").forEach((item) => { item.open = open; });

export function startKeys() {
  const dialog = document.getElementById("help");
  const button = document.getElementById("help-button");
  button.hidden = false;
  button.addEventListener("click", () => dialog.showModal());
  const actions = {
    j: () => move(1),
    k: () => move(-1),
    n: () => follow(".steps a[rel=next]", ".pager a[rel=next]"),
    p: () => follow(".steps a[rel=prev]", ".pager a[rel=prev]"),
    g: () => follow("a[data-key=g]"),
    u: () => follow("a[data-key=u]", "a.brand"),
    e: () => fold(true),
    c: () => fold(false),
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": () => dialog.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
}
