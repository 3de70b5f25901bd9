// Search without a server. A browser starts no worker for a page that was opened from a file, so
// there the search runs in a hidden frame in its place. MkDocs' offline plugin would fetch such a
// script from another host unless one of this name is given (mkdocs.yml, polyfills).

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<body>";
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve)).then(() => {
        this.inside = frame.contentWindow;
        // What a worker has and a frame has not, before the worker's own script is loaded.
        this.inside.importScripts = (...urls) =>
          Promise.all(urls.map((one) => added(this.inside.document, one)));
        this.inside.postMessage = (data) =>
          this.dispatchEvent(new MessageEvent("message", { data }));
        return added(this.inside.document, new URL(url, location.href).href);
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}

/** A script that was loaded into a document. */
function added(place, url) {
  return new Promise((resolve, reject) => {
    const script = place.createElement("script");
    script.src = url;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${url} could not be loaded`));
    place.body.append(script);
  });
}
