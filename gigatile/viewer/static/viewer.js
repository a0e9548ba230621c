// A slide with its layers. Coordinates are in pixels of level 0 of the slide.
import { Outlines } from "./outlines.js";

const id = location.pathname.split("/").pop();
const byId = (name) => document.getElementById(name);
const job = `/v1/jobs/${id}`;

function text(tag, content) {
  const element = document.createElement(tag);
  element.textContent = content;
  return element;
}

async function start() {
  const answer = await fetch(`${job}/view`);
  const slide = await answer.json();
  if (!answer.ok) {
    byId("tile").textContent = slide.error;
    return;
  }
  document.title = slide.name;
  byId("name").textContent = slide.name;
  byId("tile-title").textContent = slide.word;
  const hasInstances = slide.counts !== undefined; // else, a class with scores, or a number with a range
  if (hasInstances) {
    byId("predicted").textContent = `Detected: ${slide.predicted}`;
  } else {
    const score = slide.scores?.[slide.classes.indexOf(slide.predicted)];
    const shown = score === undefined ? "" : ` (score ${score.toFixed(3)})`;
    byId("predicted").textContent = `Predicted: ${slide.predicted}${shown}`;
    [byId("lowest").textContent, byId("highest").textContent] = slide.range ?? [0, 1];
    byId("colours").style.background = `linear-gradient(90deg, ${slide.colours.join(", ")})`;
  }

  const viewer = OpenSeadragon({
    element: byId("slide"),
    showNavigationControl: false,
    drawer: "canvas",
    showNavigator: true,
    navigatorPosition: "BOTTOM_LEFT",
    maxZoomPixelRatio: 4,
    visibilityRatio: 0.2,
    gestureSettingsMouse: { clickToZoom: false },
    gestureSettingsTouch: { dblClickToZoom: false },
    keyboardNudgeSize: 0,
    tileSources: {
      width: slide.width,
      height: slide.height,
      tileSize: slide.side,
      tileOverlap: 0,
      minLevel: 0,
      maxLevel: slide.levels - 1,
      getTileUrl: (level, column, row) => `${job}/zoom/${level}/${column}_${row}.jpg`,
    },
  });
  // The keys below are for the whole page.
  viewer.innerTracker.keyHandler = null;
  viewer.innerTracker.keyDownHandler = null;

  // --- Layers

  const unit = slide.width; // OpenSeadragon's unit is the width of the slide
  const scores = new Map((slide.tiles ?? []).map(([c, r, ...values]) => [`${c},${r}`, values]));
  const pictures = slide.layers.map((layer) => {
    const picture = document.createElement("img");
    picture.src = `${job}/layers/${layer.file}.png`;
    picture.alt = "";
    picture.className = layer.file === "tissue" ? "layer" : "layer squares";
    picture.style.visibility = "hidden"; // OpenSeadragon sets `display`
    return picture;
  });
  let chosen = hasInstances || slide.range ? 0 : slide.classes.indexOf(slide.predicted);
  let isHidden = false;
  viewer.addHandler("open", () => {
    slide.layers.forEach((layer, number) => {
      const place = new OpenSeadragon.Rect(...layer.box.map((value) => value / unit));
      viewer.addOverlay({ element: pictures[number], location: place });
    });
    show();
    outlines?.load();
    annotations?.load();
    document.body.dataset.state = "open";
  });
  const outlines = hasInstances
    ? new Outlines(viewer, job, "outlines", (message) => {
        byId("count").textContent = message;
      })
    : null;
  byId("count").hidden = !hasInstances;
  const annotated = slide.annotations; // null: the sheet has none
  const annotations =
    annotated && !annotated.error
      ? new Outlines(viewer, job, "annotations", (message) => {
          byId("annotations-count").textContent = message;
        })
      : null;
  byId("annotated").hidden = !annotations;
  byId("annotations-count").hidden = !annotated;
  byId("annotations-count").textContent = annotated?.error ?? "";
  byId("annotations-shown").addEventListener("change", (event) => {
    annotations.category = event.target.checked ? null : -1;
    annotations.draw();
  });
  viewer.addHandler("tile-load-failed", () => {
    byId("scale").textContent = "A part of the slide cannot be read.";
  });

  const names = hasInstances
    ? ["All instances", ...slide.classes.map((name, n) => `${name} (${slide.counts[n].toLocaleString("en")})`)]
    : slide.layers.map((layer) => layer.name);
  const labels = [...names, "None"];
  labels.forEach((name, number) => {
    const label = text("label", ` ${name}`);
    const input = document.createElement("input");
    input.type = "radio";
    input.name = "layer";
    input.value = number;
    input.addEventListener("change", () => choose(number));
    label.prepend(input);
    if (hasInstances && number > 0 && number < names.length) {
      label.style.borderLeft = `.5rem solid ${Outlines.colour(number - 1)}`;
      label.style.paddingLeft = ".3rem";
    }
    byId("layers").append(label);
  });

  function choose(number) {
    chosen = number;
    isHidden = false;
    show();
  }

  function show() {
    pictures.forEach((picture, number) => {
      picture.style.visibility = isHidden || number !== chosen ? "hidden" : "visible";
      picture.style.opacity = byId("opacity").value / 100;
    });
    if (outlines) {
      const isNone = isHidden || chosen === labels.length - 1;
      outlines.category = isNone ? -1 : chosen === 0 ? null : chosen - 1;
      outlines.opacity = byId("opacity").value / 100;
      outlines.draw();
    }
    byId("legend").hidden = hasInstances || chosen >= slide.classes.length;
    const inputs = byId("layers").querySelectorAll("input");
    inputs[Math.min(chosen, inputs.length - 1)].checked = true;
  }
  byId("opacity").addEventListener("input", show);
  window.addEventListener("resize", showScale);

  // --- The tile at a point

  function showInstance(point) {
    const lines = [text("p", `x ${Math.floor(point.x)}, y ${Math.floor(point.y)}`)];
    const instance = outlines.at(point);
    if (instance) {
      const score = instance.score === null ? "" : `, score ${instance.score.toFixed(3)}`;
      lines.push(text("p", `${slide.classes[instance.category]}${score}`));
    } else {
      lines.push(text("p", "No instance is shown here."));
    }
    byId("tile").replaceChildren(...lines);
  }

  function showPoint(point) {
    if (outlines) showInstance(point);
    else showTile(point);
    const annotation = annotations?.at(point);
    if (annotation) {
      byId("tile").append(text("p", `Annotation: ${annotated.classes[annotation.category]}`));
    }
  }

  function showTile(point) {
    const column = Math.floor((point.x - slide.origin[0]) / slide.extent);
    const row = Math.floor((point.y - slide.origin[1]) / slide.extent);
    const values = scores.get(`${column},${row}`);
    const lines = [text("p", `x ${Math.floor(point.x)}, y ${Math.floor(point.y)}`)];
    if (values) {
      const table = document.createElement("table");
      table.append(text("caption", `${slide.word} in column ${column}, row ${row}`));
      slide.classes.forEach((name, number) => {
        const line = table.insertRow();
        line.append(text("th", name));
        line.insertCell().textContent = values[number].toFixed(3);
      });
      lines.push(table);
    } else {
      lines.push(text("p", `No ${slide.word.toLowerCase()} was scored here.`));
    }
    byId("tile").replaceChildren(...lines);
    byId("tile").dataset.cell = `${column},${row}`;
  }
  viewer.addHandler("canvas-click", (event) => {
    if (event.quick) showPoint(viewer.viewport.viewerElementToImageCoordinates(event.position));
  });

  // --- Scale

  function showScale() {
    const pixels = viewer.viewport.viewportToImageZoom(viewer.viewport.getZoom(true));
    if (!slide.mpp) {
      byId("scale").textContent = `${pixels.toFixed(2)} screen pixels per pixel; the scale is not known`;
      return;
    }
    const um = slide.mpp / pixels; // micrometres per screen pixel
    byId("scale").textContent = `${um.toFixed(um < 1 ? 2 : 1)} µm per screen pixel, about ${(10 / um).toFixed(um > 1 ? 1 : 0)}×`;
    const power = 10 ** Math.floor(Math.log10(um * 120));
    const length = [5, 2, 1].map((step) => step * power).find((value) => value <= um * 120);
    byId("bar").style.width = `${length / um}px`;
    byId("bar-text").textContent = length >= 1000 ? `${length / 1000} mm` : `${length} µm`;
  }
  viewer.addHandler("zoom", showScale);
  viewer.addHandler("open", showScale);
  viewer.addHandler("animation-finish", () => {
    document.body.dataset.zoom = viewer.viewport.viewportToImageZoom(viewer.viewport.getZoom());
  });

  // --- Keys

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const isText = event.target.matches("textarea, select, input:not([type=radio], [type=range], [type=checkbox])");
    if (isText) return;
    if (event.target.matches("input, summary, a, button") && !"ha".includes(event.key)) return;
    const step = 100; // pixels of the screen
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[event.key]) {
      const delta = new OpenSeadragon.Point(...moves[event.key]);
      viewer.viewport.panBy(viewer.viewport.deltaPointsFromPixels(delta));
    } else if (event.key === "+" || event.key === "=") viewer.viewport.zoomBy(1.5);
    else if (event.key === "-") viewer.viewport.zoomBy(1 / 1.5);
    else if (event.key === "0") viewer.viewport.goHome();
    else if (event.key === "Enter") {
      showPoint(viewer.viewport.viewportToImageCoordinates(viewer.viewport.getCenter()));
    } else if (event.key === "h") {
      isHidden = !isHidden;
      show();
      return;
    } else if (event.key === "a") {
      if (annotations) byId("annotations-shown").click();
      return;
    } else if (/^[1-9]$/.test(event.key) && Number(event.key) <= labels.length) {
      choose(Number(event.key) - 1);
    } else return;
    viewer.viewport.applyConstraints();
    event.preventDefault();
  });
  // For the page with two slides, and for tests.
  window.gigatileViewer = viewer;
  window.gigatileSlide = slide;
}

start();
