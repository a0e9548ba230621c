// The search runs in a Web Worker, which browsers refuse for pages opened from a disk (file://).
// This class runs the worker's script in a hidden frame instead. Material for MkDocs expects it
// under the name IFrameWorker, and would otherwise load one from the network.
"use strict";

(() => {
  // These two run inside the frame, and replace its functions of the same names.
  const send = (data) => parent.postMessage(data, "*");
  const load = (...urls) =>
    urls.reduce(
      (before, url) =>
        before.then(
          () =>
            new Promise((resolve, reject) => {
              const script = document.createElement("script");
              script.src = url;
              script.onload = resolve;
              script.onerror = reject;
              document.body.appendChild(script);
            })
        ),
      Promise.resolve()
    );

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      this.receive = (event) => {
        if (event.source === inside) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      };
      window.addEventListener("message", this.receive);
      inside.document.open();
      inside.document.write(
        `<html><body><script>postMessage=${send};importScripts=${load}<\/script>` +
          `<script src="${url}"><\/script></body></html>`
      );
      inside.document.close();
      // Messages that arrive before the worker's script has run would be lost.
      const script = inside.document.querySelector("script[src]");
      this.loaded = new Promise((resolve) => script.addEventListener("load", resolve));
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.loaded.then(() =>
        inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }))
      );
    }

    terminate() {
      window.removeEventListener("message", this.receive);
      this.frame.remove();
    }
  }

  window.IFrameWorker = IFrameWorker;
  if (location.protocol === "file:") {
    window.Worker = IFrameWorker;
  }
})();
