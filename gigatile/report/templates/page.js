"use strict";
// The page reads well without this: it adds an opacity slider, heat maps that can be enlarged, slices to scroll through, and tables that sort and save as CSV.
for (const label of document.querySelectorAll(".opacity")) {
  label.hidden = false;
  const map = label.closest(".viewer").querySelector(".map");
  label.querySelector("input").addEventListener("input", (event) => {
    map.style.setProperty("--opacity", event.target.value / 100);
  });
}
// A heat map that can be enlarged: with buttons, with keys when it has the focus, with Ctrl and the wheel; a drag moves it.
for (const svg of document.querySelectorAll(".map svg")) {
  const { width, height } = svg.viewBox.baseVal;
  const most = 16;
  let zoom = 1, x = 0, y = 0; // of the part that is shown: its corner, in units of the picture
  const frame = document.createElement("div");
  frame.className = "frame";
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", "Heat map. Plus and minus zoom, arrow keys move, 0 shows all.");
  svg.replaceWith(frame);
  frame.append(svg);
  const scale = frame.parentElement.querySelector(".scale");
  const bar = scale?.querySelector("i");
  const share = bar ? parseFloat(bar.style.width) : 0;
  const text = scale?.textContent ?? "";
  const micrometres = parseFloat(text) * (text.endsWith("mm") ? 1000 : 1);
  const draw = () => {
    x = Math.max(0, Math.min(width - width / zoom, x));
    y = Math.max(0, Math.min(height - height / zoom, y));
    svg.setAttribute("viewBox", `${x} ${y} ${width / zoom} ${height / zoom}`);
    frame.classList.toggle("enlarged", zoom > 1);
    // Not `disabled`: a button with the focus would lose it.
    for (const tool of [minus, all]) tool.setAttribute("aria-disabled", zoom === 1);
    plus.setAttribute("aria-disabled", zoom === most);
    if (!bar) return;
    const longest = (25 / (share * zoom)) * micrometres; // a quarter of the width
    const power = 10 ** Math.floor(Math.log10(longest));
    const length = zoom === 1 ? micrometres : [5, 2, 1].map((step) => step * power).find((value) => value <= longest);
    bar.style.width = `${(share * zoom * length) / micrometres}%`;
    bar.nextSibling.textContent = length >= 1000 ? `${length / 1000} mm` : `${+length.toPrecision(3)} µm`;
  };
  // The point (left, top), as shares of the frame, stays where it is.
  const enlarge = (factor, left = 0.5, top = 0.5) => {
    const wanted = Math.max(1, Math.min(most, zoom * factor));
    x += (left * width) / zoom - (left * width) / wanted;
    y += (top * height) / zoom - (top * height) / wanted;
    zoom = wanted;
    draw();
  };
  const move = (right, down) => {
    x += (right * width) / zoom;
    y += (down * height) / zoom;
    draw();
  };
  const button = (label, name, action) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = label;
    made.setAttribute("aria-label", name);
    made.addEventListener("click", action);
    return made;
  };
  const plus = button("+", "Enlarge the heat map", () => enlarge(2));
  const minus = button("−", "Make the heat map smaller", () => enlarge(0.5));
  const all = button("All", "Show the whole heat map", () => enlarge(0));
  const tools = document.createElement("div");
  tools.className = "zoom";
  tools.append(plus, minus, all);
  frame.before(tools);
  const keys = {
    "+": () => enlarge(2), "=": () => enlarge(2), "-": () => enlarge(0.5), 0: () => enlarge(0),
    ArrowLeft: () => move(-0.2, 0), ArrowRight: () => move(0.2, 0), ArrowUp: () => move(0, -0.2), ArrowDown: () => move(0, 0.2),
  };
  frame.addEventListener("keydown", (event) => {
    const isArrow = event.key.startsWith("Arrow");
    if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey || (isArrow && zoom === 1)) return; // scrolls the page
    event.preventDefault();
    keys[event.key]();
  });
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    enlarge(2 ** (-event.deltaY / 200), (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }, { passive: false });
  let last = null;
  frame.addEventListener("pointerdown", (event) => {
    if (zoom === 1 || event.button) return;
    event.preventDefault();
    last = event;
    frame.setPointerCapture(event.pointerId);
    frame.focus();
  });
  frame.addEventListener("pointermove", (event) => {
    if (!last) return;
    const box = svg.getBoundingClientRect();
    move((last.clientX - event.clientX) / box.width, (last.clientY - event.clientY) / box.height);
    last = event;
  });
  for (const end of ["pointerup", "pointercancel"]) frame.addEventListener(end, () => { last = null; });
  addEventListener("hashchange", () => enlarge(0)); // the link of a tile, which is framed in the map
  draw();
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
const shown = (cell) => {
  const copy = cell.cloneNode(true);
  for (const line of copy.querySelectorAll("br")) line.replaceWith(" ");
  const text = copy.textContent.replace(/\s+/g, " ").trim();
  return /^\d{1,3}(,\d{3})+$/.test(text) ? text.replaceAll(",", "") : text;
};
const number = (text) => (/^[-−+]?\d[\d.]*( ?%)?$/.test(text) ? parseFloat(text.replace("−", "-")) : NaN);
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => row.cells[column].dataset.value ?? shown(row.cells[column]);
  const compare = (one, two) => {
    const [first, second] = [number(one), number(two)];
    if (isNaN(first) && isNaN(second)) return one.localeCompare(two, "en", { numeric: true });
    return isNaN(first) ? 1 : isNaN(second) ? -1 : first - second;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((one, two) => compare(value(one, column), value(two, column)));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
}
// A spreadsheet runs a cell that begins with one of =+-@; an apostrophe makes it text.
const quote = (text) => {
  const safe = /^[=+\-@]/.test(text) && isNaN(number(text)) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
// The name of a table: the heading of its section, and the first sentence of its caption.
const nameOf = (table) => {
  const heading = document.getElementById(table.closest("section")?.getAttribute("aria-labelledby"))?.textContent.trim();
  const caption = table.caption?.textContent.replace(/\s+/g, " ").trim().split(/[.;] |\.$/)[0];
  return [heading, caption].filter(Boolean).join(": ") || "Table";
};
const csv = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => quote(shown(cell))).join(",") + "\r\n").join("");
for (const table of document.querySelectorAll("table.sortable, table.export")) {
  const button = document.createElement("button");
  const section = table.closest("section")?.getAttribute("aria-labelledby") ?? "table";
  button.type = "button";
  button.className = "save";
  button.textContent = "Save as CSV";
  button.setAttribute("aria-label", `Save as CSV: ${nameOf(table)}`);
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    // The byte order mark: without it, Excel reads the text as Latin-1.
    link.href = URL.createObjectURL(new Blob(["\ufeff", csv(table)], { type: "text/csv" }));
    link.download = `${section}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  table.closest(".wide").after(button);
}
// Tables that are wider than the window scroll with the keyboard too, also after the window changes or `details` open.
const names = new Map();
for (const wide of document.querySelectorAll(".wide")) {
  const name = nameOf(wide.querySelector("table"));
  const number = (names.get(name) ?? 0) + 1;
  names.set(name, number);
  const allowKeys = () => {
    const scrolls = wide.scrollWidth > wide.clientWidth;
    const attributes = { tabindex: "0", role: "group", "aria-label": number > 1 ? `${name} (${number})` : name };
    for (const [key, text] of Object.entries(attributes)) scrolls ? wide.setAttribute(key, text) : wide.removeAttribute(key);
  };
  allowKeys();
  const observer = new ResizeObserver(allowKeys);
  observer.observe(wide);
  observer.observe(wide.querySelector("table"));
}
// A printed page shows everything.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
});
