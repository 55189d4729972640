"use strict";
// The ledger is readable without this; it sorts and filters.
const table = document.querySelector("table.ledger");
const form = document.querySelector("form.filters");
if (table && form) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];

  function filter() {
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = (form.verdict.value && row.dataset.verdict !== form.verdict.value)
        || (form.experiment.value && row.dataset.experiment !== form.experiment.value)
        || (form.text.value && row.dataset.text !== form.text.value)
        || !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    form.querySelector("output").textContent = `${shown} of ${rows.length} claims`;
  }

  function value(row, column) {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim().toLowerCase();
  }

  function sort(column) {
    const up = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    rows.sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column)));
    body.append(...rows);
  }

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sort(column)));
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  // index.html?verdict=open&sort=n: a view that can be linked to.
  const asked = new URLSearchParams(location.search);
  for (const name of ["verdict", "experiment", "text", "words"]) form[name].value = asked.get(name) ?? "";
  const column = heads.findIndex((head) => head.dataset.name === asked.get("sort"));
  if (column >= 0) sort(column);
  filter();
}
// A link to an entry inside a folded box opens it.
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let box = target; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
  if (target) target.scrollIntoView();
}
window.addEventListener("hashchange", unfold);
unfold();
