// The outlines of instances or annotations on a slide, drawn on a canvas above it. Coordinates are in pixels of
// level 0 of the slide.

// Of categories, in their order: colours that differ also for people with a colour deficiency.
const COLOURS = ["#00e5ff", "#ffb000", "#ff3ea5", "#7cff4f", "#b38cff", "#ffffff"];

export class Outlines {
  // From `${job}/${name}`; onChange is called with a text for people after each load.
  constructor(viewer, job, name, onChange) {
    Object.assign(this, { viewer, job, name, onChange });
    this.word = name === "outlines" ? "instances" : name;
    this.instances = [];
    this.category = null; // null: all; -1: none
    this.opacity = 1;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "outlines";
    viewer.canvas.append(this.canvas);
    viewer.addHandler("update-viewport", () => this.draw());
    viewer.addHandler("animation-finish", () => this.load());
    viewer.addHandler("resize", () => this.load());
  }

  static colour(category) {
    return COLOURS[category % COLOURS.length];
  }

  // Load the instances that are on the screen, and as many pixels around it.
  async load() {
    const port = this.viewer.viewport;
    const box = port.viewportToImageRectangle(port.getBounds());
    const wide = [box.x - box.width / 2, box.y - box.height / 2, 2 * box.width, 2 * box.height];
    const request = wide.map(Math.round).join(",");
    if (request === this.requested) return;
    this.requested = request;
    let answer;
    try {
      answer = await fetch(`${this.job}/${this.name}?box=${request}`);
    } catch {
      if (request === this.requested) this.fail("The server does not answer.");
      return;
    }
    const content = await answer.json();
    if (request !== this.requested) return; // the slide has moved on
    if (!answer.ok) {
      this.fail(content.error);
      return;
    }
    this.instances = content.instances.map(([category, score, rings]) => {
      const path = new Path2D();
      for (const ring of rings) {
        path.moveTo(ring[0], ring[1]);
        for (let i = 2; i < ring.length; i += 2) path.lineTo(ring[i], ring[i + 1]);
        path.closePath();
      }
      return { category, score, path };
    });
    const count = content.total.toLocaleString("en");
    this.onChange(
      content.total > content.most
        ? `${count} ${this.word} here: zoom in to see their outlines.`
        : `${count} ${this.word} here`,
    );
    document.body.dataset[this.name] = this.instances.length;
    this.draw();
  }

  fail(reason) {
    this.requested = null; // so that the next move asks again
    this.instances = [];
    this.onChange(reason);
    this.draw();
  }

  draw() {
    const { canvas, viewer } = this;
    const ratio = window.devicePixelRatio || 1;
    const size = viewer.viewport.getContainerSize();
    const [width, height] = [Math.round(size.x * ratio), Math.round(size.y * ratio)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    if (this.category === -1) return;
    const corner = viewer.viewport.imageToViewerElementCoordinates(new OpenSeadragon.Point(0, 0));
    const scale = this.scale();
    context.setTransform(scale * ratio, 0, 0, scale * ratio, corner.x * ratio, corner.y * ratio);
    context.lineWidth = 1.5 / scale;
    context.globalAlpha = this.opacity;
    for (const { category, path } of this.instances) {
      if (this.category !== null && category !== this.category) continue;
      if (this.name === "annotations") {
        // Dashes in white on black are seen on any tissue.
        context.setLineDash([]);
        context.lineWidth = 3 / scale;
        context.strokeStyle = "#000";
        context.stroke(path);
        context.setLineDash([8 / scale, 6 / scale]);
        context.lineWidth = 2 / scale;
      }
      context.strokeStyle = this.name === "annotations" ? "#fff" : Outlines.colour(category);
      context.stroke(path);
    }
  }

  // Screen pixels per pixel of the slide.
  scale() {
    return this.viewer.viewport.viewportToImageZoom(this.viewer.viewport.getZoom(true));
  }

  // The shown instance at a point, or undefined; the last one is drawn above the others.
  at(point) {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    return this.instances.findLast(
      ({ category, path }) =>
        (this.category === null || category === this.category) &&
        context.isPointInPath(path, point.x, point.y, "evenodd"),
    );
  }
}
