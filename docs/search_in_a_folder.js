// Pages that are opened from a folder may not start workers, which the search is. So its script runs in a hidden frame,
// with the part of a worker's interface that it needs.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      script.onload = () => {
        this.loaded = true;
        this.waiting.splice(0).forEach((data) => this.deliver(data));
      };
      script.src = new URL(address, location);
      this.inside.document.body.append(script);
    }
    deliver(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.loaded) this.deliver(data);
      else this.waiting.push(data);
    }
  };
}
