// One pair at a time. An answer counts as given when the server says that it is on the disk; only then the page moves on.
"use strict";

const PARTS = ["context", "a", "b"];
const NAMES = { a: "A", b: "B", tie: "Cannot tell" };
const SPEAKERS = { user: "Speaker 1", assistant: "Speaker 2" };
// What is compared: two dialogues, or two scores of the one that both parts share. What has to be heard differs.
const FORMS = {
  dialogues: { title: "Compare two conversations", shared: "beginning", heading: "Shared beginning", hear: ["a", "b"] },
  scores: { title: "Compare two scores", shared: "conversation", heading: "The conversation", hear: ["context"] },
};
const KEYS = { 1: "a", a: "a", 2: "b", b: "b", 3: "tie" };
const byId = (id) => document.getElementById(id);

let study = null;
let welcome = null;
let position = 0;
let saving = false;
// Recordings of this pair that were started, the one that Space resumes, and where playback ends.
let started = new Set();
let current = null;
let scope = PARTS;

function players(parts = PARTS) {
  return parts.flatMap((part) => [...byId(part).querySelectorAll("audio")]);
}

function item() {
  return study.items[position];
}

function form() {
  return FORMS[study.form ?? "dialogues"];
}

function say(text, isBad = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", isBad);
}

function element(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}

function showTurn(turn, index, partName) {
  const entry = element("li", {});
  const who = turn.role ? `${index + 1}. ${SPEAKERS[turn.role] ?? turn.role}` : "";
  if (who) entry.append(element("span", { className: "who", textContent: who }));
  entry.append(element("p", { textContent: turn.text || "(no transcript)" }));
  if (turn.audio) {
    const audio = element("audio", { controls: true, preload: "metadata", src: `/audio/${turn.audio}` });
    audio.setAttribute("aria-label", who ? `${partName}, turn ${who}` : partName);
    audio.addEventListener("play", () => onPlay(audio, entry));
    audio.addEventListener("pause", () => onPause(entry));
    audio.addEventListener("ended", () => playNext(audio));
    audio.addEventListener("error", () => say("A recording of this pair cannot be played; tell whoever runs the study.", true));
    entry.append(audio);
  }
  return entry;
}

function onPlay(audio, entry) {
  for (const other of players()) if (other !== audio) other.pause();
  started.add(audio);
  current = audio;
  entry.classList.add("playing");
  entry.scrollIntoView({ block: "nearest" });
  showPlaying();
}

function onPause(entry) {
  entry.classList.remove("playing");
  showPlaying();
}

function isPlaying(part) {
  return players([part]).some((audio) => !audio.paused);
}

function showPlaying() {
  for (const button of document.querySelectorAll(".play")) {
    const { part } = button.dataset;
    button.textContent = `${isPlaying(part) ? "Pause" : "Play"} ${NAMES[part] ?? form().shared}`;
  }
}

function playNext(audio) {
  const queue = players(scope);
  const next = queue.includes(audio) ? queue[queue.indexOf(audio) + 1] : undefined;
  current = next ?? null;
  if (next) play(next);
}

function play(audio) {
  // Refused when the page was left in the meantime: nothing to mend.
  audio.play().catch(() => {});
}

function pauseAll() {
  for (const audio of players()) audio.pause();
}

function togglePart(part) {
  if (isPlaying(part)) {
    pauseAll();
    return;
  }
  const queue = players([part]);
  scope = [part];
  play(queue.includes(current) ? current : queue[0]);
}

function togglePlaying() {
  if (PARTS.some(isPlaying)) {
    pauseAll();
    return;
  }
  scope = PARTS;
  const next = current ?? players()[0];
  if (next) play(next);
}

function show(newPosition) {
  pauseAll();
  position = Math.min(Math.max(newPosition, 0), study.items.length - 1);
  started = new Set();
  current = null;
  for (const part of PARTS) {
    const list = byId(part).querySelector(".turns");
    // Turns count on from the shared beginning, for A and for B alike.
    const before = part === "context" ? 0 : item().context.length;
    const name = NAMES[part] ?? form().shared.replace(/^./, (letter) => letter.toUpperCase());
    list.replaceChildren(...item()[part].map((turn, offset) => showTurn(turn, before + offset, name)));
    byId(part).querySelector(".play").disabled = players([part]).length === 0;
    byId(part).querySelector(".play").hidden = part !== "context" && !form().hear.includes(part);
  }
  showPlaying();
  byId("context").hidden = item().context.length === 0;
  byId("question").textContent = item().question;
  byId("back").disabled = position === 0;
  byId("forth").disabled = position === study.items.length - 1;
  showAnswers();
  window.scrollTo(0, 0);
  byId("question").focus({ preventScroll: true });
}

function showAnswers() {
  const total = study.items.length;
  const answered = Object.keys(study.answers).length;
  byId("count").textContent = `Pair ${position + 1} of ${total}, ${answered} answered`;
  byId("progress").max = total;
  byId("progress").value = answered;
  byId("open").disabled = answered === total;
  for (const button of document.querySelectorAll("[data-choice]")) {
    button.setAttribute("aria-pressed", String(study.answers[item().item] === button.dataset.choice));
  }
}

function firstUnanswered(from = 0) {
  const order = [...study.items.keys()];
  const turned = [...order.slice(from), ...order.slice(0, from)];
  return turned.find((index) => !(study.items[index].item in study.answers));
}

function heard() {
  return form().hear.filter((part) => players([part]).every((audio) => started.has(audio)));
}

async function choose(choice) {
  if (saving || (choice === "tie" && !study.allow_tie)) return;
  saving = true;
  say("Saving");
  const given = { item: item().item, choice, heard: heard(), rater: study.rater };
  try {
    const body = JSON.stringify(given);
    await ask("/api/answers", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    study.answers[given.item] = choice;
    moveOn(choice);
  } catch (error) {
    say(`Not saved: ${error.message} Choose again.`, true);
  } finally {
    saving = false;
  }
}

function moveOn(choice) {
  const saved = `Saved for pair ${position + 1}: ${NAMES[choice]}.`;
  const next = firstUnanswered(position + 1);
  if (next === undefined) {
    showAnswers();
    say(`${saved} All ${study.items.length} pairs are answered, thank you. You can go back and change answers, or close this page.`);
  } else {
    show(next);
    say(saved);
  }
}

function onKey(event) {
  if (byId("rating").hidden || event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  const inPlayer = event.target.closest("audio");
  const onControl = event.target.closest("audio, button, a");
  const choice = KEYS[event.key.toLowerCase()];
  if (choice) choose(choice);
  else if (event.key === " " && !onControl) togglePlaying();
  else if (event.key === "ArrowLeft" && !inPlayer) show(position - 1);
  else if (event.key === "ArrowRight" && !inPlayer) show(position + 1);
  else return;
  event.preventDefault();
}

function paragraphs(id, text) {
  byId(id).replaceChildren(...text.split(/\n\s*\n/).map((part) => element("p", { textContent: part.trim() })));
}

async function ask(path, options) {
  const response = await fetch(path, options);
  const content = await response.json();
  if (!response.ok) throw new Error(content.error);
  return content;
}

function showWelcome(isFirst) {
  pauseAll();
  byId("rating").hidden = true;
  byId("welcome").hidden = false;
  byId("agree").required = isFirst;
  for (const part of [byId("agree").parentElement, byId("name-field")]) part.hidden = !isFirst;
  byId("name-field").hidden = !isFirst || welcome.rater !== null;
  byId("name").required = isFirst && welcome.rater === null;
  byId("begin").textContent = isFirst ? "Begin" : "Back to the pairs";
  window.scrollTo(0, 0);
  byId("welcome-title").focus({ preventScroll: true });
}

async function consent() {
  if (study) {
    byId("welcome").hidden = true;
    byId("rating").hidden = false;
    show(position);
    return;
  }
  const given = { agrees: byId("agree").checked, rater: welcome.rater ?? byId("name").value };
  try {
    const body = JSON.stringify(given);
    const agreed = await ask("/api/consent", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    await openStudy(agreed.rater);
  } catch (error) {
    byId("welcome-status").textContent = error.message;
  }
}

async function openStudy(name) {
  study = await ask(`/api/study?rater=${encodeURIComponent(name)}`);
  byId("welcome").hidden = true;
  byId("rating").hidden = false;
  document.body.dataset.form = study.form ?? "dialogues";
  document.title = byId("title").textContent = form().title;
  byId("context-title").textContent = form().heading;
  byId("rater").textContent = `Your name in this study: ${study.rater}`;
  document.querySelector("[data-choice=tie]").hidden = !study.allow_tie;
  byId("tie-key").hidden = !study.allow_tie;
  const next = firstUnanswered();
  show(next ?? study.items.length - 1);
  if (next === undefined) say(`All ${study.items.length} pairs are answered. You can go back and change answers.`);
}

async function start() {
  try {
    welcome = await ask("/api/welcome");
  } catch (error) {
    byId("rating").hidden = false;
    say(`The study cannot be loaded: ${error.message} Reload this page when the server runs again.`, true);
    return;
  }
  paragraphs("instructions", welcome.instructions);
  paragraphs("consent", welcome.consent);
  for (const button of document.querySelectorAll(".play")) button.addEventListener("click", () => togglePart(button.dataset.part));
  for (const button of document.querySelectorAll("[data-choice]")) button.addEventListener("click", () => choose(button.dataset.choice));
  byId("back").addEventListener("click", () => show(position - 1));
  byId("forth").addEventListener("click", () => show(position + 1));
  byId("open").addEventListener("click", () => show(firstUnanswered(position) ?? position));
  byId("again").addEventListener("click", () => showWelcome(false));
  byId("begin-form").addEventListener("submit", (event) => {
    event.preventDefault();
    consent();
  });
  document.addEventListener("keydown", onKey);
  if (welcome.has_consented) await openStudy(welcome.rater);
  else showWelcome(true);
}

start();
