(() => {
"use strict";
const STEP = 5, HOLD = 0.4; // seconds: of a jump, and that a piece stays marked after its end where none follows
const one = (css) => document.querySelector(css), all = (css) => [...document.querySelectorAll(css)];
const audio = one("audio"), follow = one("#follow"), query = one("#q"), count = one("output");
const smooth = matchMedia("(prefers-reduced-motion: no-preference)").matches ? "smooth" : "auto";

try {
  const names = new Intl.DisplayNames(["en"], {type: "language"});
  for (const e of all("[data-language]")) e.textContent = names.of(e.dataset.language);
} catch { /* the code says it too */ }
one("#doubt").addEventListener("change", (e) => document.body.classList.toggle("plain", !e.target.checked));

function show(element, edge) {
  const {top, bottom} = element.getBoundingClientRect();
  if (top < one(".bar").getBoundingClientRect().bottom + 8 || bottom > innerHeight * edge)
    element.scrollIntoView({block: "center", behavior: smooth});
}

if (audio) {
  // Pieces by channel, in order of time: two may speak at once.
  const tracks = new Map();
  for (const turn of all(".turn")) {
    const key = turn.dataset.channel ?? "";
    if (!tracks.has(key)) tracks.set(key, {pieces: [], starts: [], ends: [], now: -1});
    const track = tracks.get(key);
    for (const piece of turn.querySelectorAll(".t")) {
      track.pieces.push(piece);
      track.starts.push(+piece.dataset.s);
      track.ends.push(+piece.dataset.e);
    }
  }
  const at = ({starts, ends}, time) => {
    let low = 0, high = starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= time + 0.01) low = middle + 1; else high = middle;
    }
    return low && time < ends[low - 1] + HOLD ? low - 1 : -1;
  };
  const head = one(".strip .head");
  const mark = () => {
    const time = audio.currentTime;
    for (const track of tracks.values()) {
      const now = at(track, time);
      if (now === track.now) continue;
      track.pieces[track.now]?.classList.remove("now");
      track.now = now;
      if (now < 0) continue;
      track.pieces[now].classList.add("now");
      if (follow.checked) show(track.pieces[now], 0.75);
    }
    if (audio.duration) head.style.left = `${time / audio.duration * 100}%`;
  };
  const run = () => { mark(); if (!audio.paused) requestAnimationFrame(run); };
  audio.addEventListener("play", run);
  for (const name of ["timeupdate", "seeking", "seeked", "loadedmetadata"]) audio.addEventListener(name, mark);
  audio.addEventListener("error", () => { one(".trouble").textContent = "The sound cannot be played here."; });
  const play = () => audio.play().catch(() => {}); // a browser that forbids it has said so already
  const jump = (time) => { audio.currentTime = Math.max(0, Math.min(time, audio.duration || time)); };

  one("main").addEventListener("click", (event) => {
    const target = event.target.closest("[data-s]");
    if (!target || !getSelection().isCollapsed) return;
    jump(+target.dataset.s);
    follow.checked = true;
    play();
  });
  one(".strip").addEventListener("click", (event) => {
    const {left, width} = event.currentTarget.getBoundingClientRect();
    jump((event.clientX - left) / width * (audio.duration || 0));
  });
  const away = () => { if (!audio.paused) follow.checked = false; };
  for (const name of ["wheel", "touchmove"]) addEventListener(name, away, {passive: true});
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, audio")) return;
    const key = event.key;
    if (["PageUp", "PageDown", "Home", "End", "ArrowUp", "ArrowDown"].includes(key)) return away();
    if (key === " " && event.target.closest("button, summary, a")) return;
    if (key === " " || key === "k") audio.paused ? play() : audio.pause();
    else if (key === "ArrowLeft" || key === "j") jump(audio.currentTime - STEP);
    else if (key === "ArrowRight" || key === "l") jump(audio.currentTime + STEP);
    else return;
    event.preventDefault();
  });
  const start = /^#t=([0-9.]+)$/.exec(location.hash);
  if (start) audio.addEventListener("loadedmetadata", () => jump(+start[1]), {once: true});
}

// Search. The text of each paragraph, folded, and for each of its characters where in the document it stands.
const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
let index = null, hits = [], chosen = -1;
function indexed() {
  return all(".turn p").map((paragraph) => {
    const walker = document.createTreeWalker(paragraph, NodeFilter.SHOW_TEXT, (node) =>
      node.parentElement.closest(".flag") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
    let text = "";
    const nodes = [], offsets = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      let offset = 0;
      for (const character of node.data) {
        let folded = fold(character);
        if (/\s/.test(character)) folded = text.endsWith(" ") || !text ? "" : " ";
        for (const unit of folded.split("")) { text += unit; nodes.push(node); offsets.push([offset, offset + character.length]); }
        offset += character.length;
      }
    }
    return {text, nodes, offsets};
  });
}
function search() {
  const wanted = fold(query.value).replace(/\s+/g, " ").trim();
  index ??= indexed();
  hits = [];
  if (wanted)
    for (const {text, nodes, offsets} of index)
      for (let i = text.indexOf(wanted); i >= 0; i = text.indexOf(wanted, i + wanted.length)) {
        const last = i + wanted.length - 1, range = new Range();
        range.setStart(nodes[i], offsets[i][0]);
        range.setEnd(nodes[last], offsets[last][1]);
        hits.push(range);
      }
  chosen = -1;
  for (const id of ["#previous", "#next"]) one(id).disabled = !hits.length;
  if (globalThis.Highlight) {
    CSS.highlights.set("hits", new Highlight(...hits.slice(0, 5000)));
    CSS.highlights.delete("hit");
  }
  count.textContent = !wanted ? "" : hits.length ? `${hits.length} ${hits.length === 1 ? "hit" : "hits"}` : "no hit";
}
function step(by) {
  if (!hits.length) return;
  chosen = chosen < 0 ? (by > 0 ? 0 : hits.length - 1) : (chosen + by + hits.length) % hits.length;
  const range = hits[chosen];
  if (globalThis.Highlight) {
    const mine = new Highlight(range);
    mine.priority = 1;
    CSS.highlights.set("hit", mine);
  }
  if (follow && audio && !audio.paused) follow.checked = false;
  show(range.startContainer.parentElement, 0.9);
  count.textContent = `${chosen + 1} of ${hits.length}`;
}
query.addEventListener("input", search);
one("form.search").addEventListener("submit", (event) => event.preventDefault());
one("#next").addEventListener("click", () => step(1));
one("#previous").addEventListener("click", () => step(-1));
query.addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); }
  if (event.key === "Escape") { query.value = ""; search(); query.blur(); }
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input")) { event.preventDefault(); query.focus(); query.select(); }
});
})();
