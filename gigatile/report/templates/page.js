"use strict";
// The page reads well without this: it adds an opacity slider, slices to scroll through and tables that sort.
for (const label of document.querySelectorAll(".opacity")) {
  label.hidden = false;
  const map = label.closest(".viewer").querySelector(".map");
  label.querySelector("input").addEventListener("input", (event) => {
    map.style.setProperty("--opacity", event.target.value / 100);
  });
}
for (const scroller of document.querySelectorAll(".scroller")) {
  scroller.hidden = false;
  const slices = [...scroller.querySelectorAll("img")];
  const range = scroller.querySelector("input");
  const show = (wanted) => {
    const number = Math.max(0, Math.min(slices.length - 1, wanted));
    slices.forEach((slice, index) => { slice.hidden = index !== number; });
    range.value = number;
    scroller.querySelector("output").value = slices[number].dataset.slice;
  };
  range.addEventListener("input", () => show(+range.value));
  let drag = null;
  const figure = scroller.querySelector("figure");
  figure.addEventListener("pointerdown", (event) => {
    if (event.target.tagName !== "IMG") return;
    event.preventDefault();
    drag = { y: event.clientY, start: +range.value };
    figure.setPointerCapture(event.pointerId);
    range.focus();
  });
  figure.addEventListener("pointermove", (event) => {
    if (drag) show(drag.start + Math.round((drag.y - event.clientY) / 6));
  });
  let turned = 0;
  figure.addEventListener("wheel", (event) => {
    const end = event.deltaY > 0 ? 0 : slices.length - 1;
    if (event.target.tagName !== "IMG" || event.ctrlKey || +range.value === end) return; // scrolls the page
    event.preventDefault();
    turned += event.deltaY * (event.deltaMode ? 33 : 1); // a line is about 33 pixels
    const steps = Math.trunc(turned / 100);
    turned -= 100 * steps;
    show(+range.value - steps);
  }, { passive: false });
  for (const end of ["pointerup", "pointercancel"]) figure.addEventListener(end, () => { drag = null; });
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((one, two) =>
        value(one, column).localeCompare(value(two, column), "en", { numeric: true }));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
}
