// In a folder of static pages, which no server filters: a field that hides the rows without a text.

export function filterTables() {
  if (!document.querySelector("meta[http-equiv='Content-Security-Policy']")) return;  // a server has its own search
  for (const table of document.querySelectorAll("table.rollouts")) {
    const label = document.createElement("label");
    label.className = "bar";
    label.textContent = "Rows of this page that contain ";
    const input = document.createElement("input");
    input.type = "search";
    input.dataset.search = "";
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    label.append(input);
    table.parentElement.before(label);
  }
}
