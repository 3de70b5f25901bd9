/**
 * Puts the live page or the story into a page, where this script stands:
 *
 *     <script src="https://.../embed.js" data-view="story" data-address="step=4" data-height="720"></script>
 *
 * data-view     the name of a page that lies beside this script: live (if none is given), story, live.de, story.de
 * data-address  what stands behind # in the page's address, as its own button copies it
 * data-height   CSS pixels; 800 if none are given
 */
{
  const script = document.currentScript;
  const { view = "live", address = "", height = "800", title = "A model that runs in this page" } = script.dataset;
  const frame = document.createElement("iframe");
  const source = new URL(`${encodeURIComponent(view)}.html`, script.src);
  source.hash = address;
  Object.assign(frame, { src: source.href, title, width: "100%", height, loading: "lazy", allow: "clipboard-write" });
  frame.style.border = "0";
  script.after(frame);
}
