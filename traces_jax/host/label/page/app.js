// The labeling page. It holds the clip on the screen and the next ones, already loaded, so that an answer shows the next
// clip at once. Answers are sent one after the other, in the order in which they were given.
"use strict";

const $ = (id) => document.getElementById(id);
const video = $("video");
const POLL = 600, RETRY = 1500, NOTE = 5000;

const page = {
  about: null,      // the task, its question, frames per second
  annotator: "",
  queue: [],        // clips: {id, steps, frames, url}, the first is on the screen
  done: new Set(),  // ids that were answered here
  frame: 0,
  plays: 0,         // how often the clip on the screen was played
  sending: Promise.resolve(),
  answeredAt: null,
  timer: 0,
};

// --- Requests.

const token = (() => {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token") || "";
})();
const authorized = token ? { Authorization: `Bearer ${token}` } : {};

class Refused extends Error {}

async function call(name, asked) {
  for (;;) {
    let response;
    try {
      response = await fetch(`api/${name}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...authorized },
        body: JSON.stringify({ annotator: page.annotator, ...asked }),
      });
    } catch {
      response = null;  // The server is not there; it may come back.
    }
    if (response && response.ok) {
      note("");
      return response.json();
    }
    if (response && response.status === 401) {
      note("This page needs the whole address that the server printed, with its token.", true);
      throw new Refused("token");
    }
    if (response && (response.status === 400 || response.status === 409)) {
      throw new Refused((await response.json()).error);
    }
    note("The server does not answer. Your answers are kept and sent when it does.", true);
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}

// One request after the other: an answer must arrive before the next clips are asked for.
function inTurn(work) {
  page.sending = page.sending.then(work, work);
  return page.sending;
}

async function load(clip, path) {
  if (!clip.loading) {
    clip.loading = fetch(path, { headers: authorized }).then(async (response) => {
      if (!response.ok) throw new Error(String(response.status));
      clip.url = URL.createObjectURL(await response.blob());
    }).catch(() => { clip.loading = null; });
  }
  return clip.loading;
}

// --- Words.

let noteTimer = 0;
function note(text, stays) {
  clearTimeout(noteTimer);
  $("alert").hidden = !text;
  $("alert").textContent = text;
  if (text && !stays) noteTimer = setTimeout(() => note(""), NOTE);
}

function say(text) { $("status").textContent = text; }

function show(name) {
  for (const main of document.querySelectorAll("main")) main.hidden = main.id !== name;
}

function count(progress) {
  const total = progress.expected ? ` of ${progress.expected}` : "";
  $("progress").textContent = `${progress.left} left now · ${progress.answered}${total} labelled`;
}

// --- Introduction.

async function introduce() {
  page.about = await call("about", {});
  document.title = page.about.question;
  for (const heading of document.querySelectorAll(".question")) heading.textContent = page.about.question;
  document.querySelector(".guide").textContent = page.about.guide;
  $("look").hidden = !page.about.scenes;
  $("examples").replaceChildren(...page.about.examples.map(example));
  $("name").value = localStorage.getItem("annotator") || "";
  show("intro");
  if (page.annotator) $("enter").querySelector("button").focus();
}

function example(given, number) {
  const wrong = given.violation !== null;
  const figure = document.createElement("figure");
  const shown = document.createElement("video");
  Object.assign(shown, { muted: true, loop: true, playsInline: true, controls: true });
  shown.setAttribute("aria-label", `Example ${number + 1}`);
  const words = document.createElement("figcaption");
  const verdict = document.createElement("strong");
  verdict.className = wrong ? "no" : "yes";
  verdict.textContent = wrong ? `Wrong from step ${given.violation + 1}. ` : "Accept. ";
  words.append(verdict, given.words);
  figure.append(shown, words);
  const clip = {};
  load(clip, `api/example/${number}`).then(() => {
    if (!clip.url) return;
    shown.src = clip.url;
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) shown.play().catch(() => {});
  });
  return figure;
}

$("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  page.annotator = $("name").value.trim();
  localStorage.setItem("annotator", page.annotator);
  for (const shown of $("examples").querySelectorAll("video")) shown.pause();
  start();
});

// --- The queue.

async function start() {
  show("work");
  $("stage").focus();
  await more();
}

async function more() {
  let found;
  try {
    found = await inTurn(() => call("next", {}));
  } catch (error) {
    if (error instanceof Refused) { note(error.message); show("intro"); }
    return;
  }
  const known = new Set(page.queue.map((clip) => clip.id));
  const before = page.queue[0];
  for (const clip of found.items) {
    if (!known.has(clip.id) && !page.done.has(clip.id)) page.queue.push(clip);
  }
  for (const clip of page.queue) load(clip, `api/clip/${clip.id}`);
  count(found);
  if (page.queue[0] !== before || !page.queue.length) present(found);
}

// progress: what the server has just said; nothing right after an answer.
async function present(progress = {}) {
  const clip = page.queue[0];
  flat();
  for (const button of $("answers").querySelectorAll("button")) button.disabled = !clip && button.id !== "undo";
  video.hidden = !clip;
  $("wait").hidden = Boolean(clip);
  if (!clip) {
    if (progress.state === "complete") return finish();
    $("wait").textContent = progress.state === "stopped"
      ? "The training is not running. Clips appear here when it goes on."
      : progress.open
        ? "Other people have the clips that are left. The next ones appear by themselves."
        : "The learner is learning from your answers. The next clips appear by themselves.";
    clearTimeout(page.timer);
    page.timer = setTimeout(() => { if (!page.queue.length) more(); }, POLL);
    return;
  }
  if (!clip.url) {
    $("wait").hidden = false;
    $("wait").textContent = "The clip is being drawn.";
    await load(clip, `api/clip/${clip.id}`);
    if (clip !== page.queue[0]) return;
    if (!clip.url) {
      clearTimeout(page.timer);
      page.timer = setTimeout(() => present(), POLL);
      return;
    }
    $("wait").hidden = true;
  }
  page.plays = 0;
  page.frame = 0;
  $("place").max = clip.frames - 1;
  video.src = clip.url;
  video.playbackRate = Number($("speed").value);
  look();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) seek(0);
  else play();
  say(`A clip of ${clip.steps} steps. ${$("progress").textContent}`);
}

async function finish() {
  const found = await inTurn(() => call("summary", {}));
  $("totals").textContent = `${found.yours} of ${found.answered} clips were labelled by you.`;
  const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);
  const kappa = (value) => (value === null ? "–" : value.toFixed(2));
  const rows = [
    ...found.annotators.filter((one) => one.self.count).map((one) => [`${one.name}, twice`, one.self]),
    ...found.pairs.map((pair) => [pair.names.join(" and "), pair]),
  ];
  $("agreement").hidden = !rows.length;
  $("agreement").querySelector("tbody").replaceChildren(...rows.map(([who, agreement]) => {
    const row = document.createElement("tr");
    for (const text of [who, agreement.count, percent(agreement.share), kappa(agreement.kappa)]) {
      row.insertCell().textContent = text;
    }
    return row;
  }));
  show("end");
  say("All clips are labelled. Thank you.");
}

// --- Playing. Frame n is shown from n / fps to (n + 1) / fps; its middle is safe from rounding.

function seek(frame) {
  const clip = page.queue[0];
  if (!clip) return;
  video.pause();
  page.frame = Math.max(0, Math.min(clip.frames - 1, frame));
  video.currentTime = (page.frame + 0.5) / page.about.fps;
  mark();
}

function play() {
  if (video.ended) video.currentTime = 0;
  page.plays += 1;
  video.play().catch(() => {});
}

function step() { return Math.min(page.frame * page.about.every, page.queue[0].steps - 1); }

function mark() {
  const clip = page.queue[0];
  if (!clip) return;
  $("place").value = page.frame;
  $("step").textContent = `${step() + 1} / ${clip.steps}`;
  $("place").setAttribute("aria-valuetext", `step ${step() + 1} of ${clip.steps}`);
}

// Called for every frame that reaches the screen.
function look() {
  const clip = page.queue[0];
  video.requestVideoFrameCallback((now, frame) => {
    if (clip !== page.queue[0]) return;
    if (!video.paused) page.frame = Math.min(clip.frames - 1, Math.floor(frame.mediaTime * page.about.fps + 1e-3));
    mark();
    if (page.answeredAt !== null) {
      document.body.dataset.milliseconds = Math.round(performance.now() - page.answeredAt);
      page.answeredAt = null;
    }
    look();
  });
}

for (const kind of ["play", "pause", "ended"]) {
  video.addEventListener(kind, () => {
    const playing = !video.paused && !video.ended;
    $("play").textContent = playing ? "❚❚" : "▶\uFE0E";
    $("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  });
}

// --- From any side. The other view has its own player, so that moments are marked in the video.

function flat() {
  $("scene").hidden = true;
  $("scene").removeAttribute("src");
  $("look").setAttribute("aria-pressed", "false");
}

function look3d() {
  if (!$("scene").hidden) return flat();
  const clip = page.queue[0];
  if (!clip) return;
  video.pause();
  $("scene").src = `scene/${clip.id}`;
  $("scene").hidden = false;
  $("look").setAttribute("aria-pressed", "true");
}

// Whoever leaves the view with the mouse wants the keys to answer again.
$("scene").addEventListener("mouseleave", () => $("stage").focus());

// --- Answers.

const SAID = { accept: "Accepted.", reject: "Rejected.", from: "Marked.", unsure: "Skipped." };

function answer(verdict) {
  const clip = page.queue[0];
  if (!clip || !clip.url) return;
  const said = { id: clip.id, verdict, replays: Math.max(0, page.plays - 1) };
  if (verdict === "from") said.step = step();
  page.answeredAt = performance.now();
  page.done.add(clip.id);
  page.queue.shift();
  URL.revokeObjectURL(clip.url);
  say(SAID[verdict]);
  present();
  inTurn(() => call("answer", said)).then(count, (error) => note(error.message));
  if (page.queue.length < 3) more();
}

async function undo() {
  try {
    const found = await inTurn(() => call("undo", {}));
    page.done.delete(found.item.id);
    page.queue = [found.item, ...page.queue.filter((clip) => clip.id !== found.item.id)];
    count(found);
    say("Undone.");
    await present();
  } catch (error) {
    note(error.message);
  }
}

const ACTIONS = {
  accept: () => answer("accept"), reject: () => answer("reject"), from: () => answer("from"),
  unsure: () => answer("unsure"), undo, play: () => (video.paused || video.ended ? play() : video.pause()),
  back: () => seek(page.frame - 1), forward: () => seek(page.frame + 1), help: () => introduce(),
  look: () => { if (!$("look").hidden) look3d(); },
};
for (const [id, action] of Object.entries(ACTIONS)) {
  $(id).addEventListener("click", (event) => {
    // After a click with the mouse, the space bar should play and not press the same button again.
    if (event.detail) $("stage").focus();
    action();
  });
}
$("place").addEventListener("input", () => seek(Number($("place").value)));
$("speed").addEventListener("change", () => { video.playbackRate = Number($("speed").value); });

const KEYS = {
  a: "accept", r: "reject", x: "from", s: "unsure", z: "undo", " ": "play",
  ArrowLeft: "back", ",": "back", ArrowRight: "forward", ".": "forward", "?": "help", d: "look",
};
document.addEventListener("keydown", (event) => {
  if ($("work").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  // A focused button or slider has its own meaning of these keys; with the space bar, so that each can be pressed.
  const own = event.target.closest("button, select, input");
  if (own && (key === " " || (own.tagName !== "BUTTON" && key.startsWith("Arrow")))) return;
  if ("1234".includes(key)) {
    $("speed").selectedIndex = Number(key) - 1;
    video.playbackRate = Number($("speed").value);
  } else if (KEYS[key]) {
    if (event.repeat && !["back", "forward"].includes(KEYS[key])) return;
    ACTIONS[KEYS[key]]();
  } else return;
  event.preventDefault();
});

introduce().catch(() => {});
