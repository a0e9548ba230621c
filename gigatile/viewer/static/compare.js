// Two slides, or two predictions of a slide, that move and zoom together.
const wanted = new URLSearchParams(location.search);
const frames = ["left", "right"].map((name) => document.getElementById(name));
const linked = document.getElementById("linked");
const isId = (text) => /^[0-9a-f]{32}$/.test(text ?? "");

// A view in the slide's own terms: its centre in micrometres (in pixels without a scale), and how
// many of these a pixel of the screen has.
function viewOf(frame) {
  const { gigatileViewer: viewer, gigatileSlide: slide } = frame.contentWindow;
  const um = slide.mpp ?? 1;
  const centre = viewer.viewport.viewportToImageCoordinates(viewer.viewport.getCenter());
  const zoom = viewer.viewport.viewportToImageZoom(viewer.viewport.getZoom());
  return { x: centre.x * um, y: centre.y * um, size: um / zoom };
}

function show(frame, view) {
  const { gigatileViewer: viewer, gigatileSlide: slide, OpenSeadragon } = frame.contentWindow;
  const um = slide.mpp ?? 1;
  const port = viewer.viewport;
  port.zoomTo(port.imageToViewportZoom(um / view.size), null, true);
  port.panTo(port.imageToViewportCoordinates(new OpenSeadragon.Point(view.x / um, view.y / um)), true);
}

// Where the right slide is when the left one is at a view: both keep their distance.
let offset = { x: 0, y: 0, ratio: 1 };
function keepOffset() {
  const [left, right] = frames.map(viewOf);
  offset = { x: right.x - left.x, y: right.y - left.y, ratio: right.size / left.size };
}

let isFollowing = false;
function follow(from) {
  if (isFollowing || !linked.checked) return;
  isFollowing = true;
  const view = viewOf(frames[from]);
  const sign = from === 0 ? 1 : -1;
  show(frames[1 - from], {
    x: view.x + sign * offset.x,
    y: view.y + sign * offset.y,
    size: view.size * offset.ratio ** sign,
  });
  isFollowing = false;
}

function isOpen(frame) {
  return frame.contentDocument?.body?.dataset.state === "open";
}

function start() {
  const ids = ["left", "right"].map((name) => wanted.get(name));
  if (!ids.every(isId)) {
    document.getElementById("state").textContent = "Choose two slides in the list.";
    return;
  }
  frames.forEach((frame, number) => {
    frame.src = `/viewer/slides/${ids[number]}`;
  });
  const timer = setInterval(() => {
    if (!frames.every(isOpen)) return;
    clearInterval(timer);
    // The same file has the same pixels; two slides begin with all of each.
    const [left, right] = frames.map((frame) => frame.contentWindow.gigatileSlide);
    if (left.width === right.width && left.height === right.height) show(frames[1], viewOf(frames[0]));
    keepOffset();
    frames.forEach((frame, number) => {
      frame.contentWindow.gigatileViewer.addHandler("update-viewport", () => follow(number));
    });
    document.body.dataset.state = "open";
  }, 100);
}

linked.addEventListener("change", () => {
  if (linked.checked && document.body.dataset.state === "open") keepOffset();
});
start();
