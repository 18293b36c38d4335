// One pair at a time. The page moves to the next pair when the server has saved the answer.
"use strict";

const PARTS = ["context", "a", "b"];
const NAMES = { a: "A", b: "B", tie: "Cannot tell" };
const SPEAKERS = { user: "Speaker 1", assistant: "Speaker 2" };
// Raters compare two dialogues, or two scores of one dialogue; `hear` lists the parts that must be played.
const FORMS = {
  dialogues: { title: "Compare two conversations", shared: "beginning", heading: "Shared beginning", hear: ["a", "b"] },
  scores: { title: "Compare two scores", shared: "conversation", heading: "The conversation", hear: ["context"] },
};
const KEYS = { 1: "a", a: "a", 2: "b", b: "b", 3: "tie" };

const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const element = (tag, properties) => Object.assign(document.createElement(tag), properties);
const players = (parts = PARTS) => parts.flatMap((part) => all(`#${part} audio`));
const isPlaying = (parts) => players(parts).some((audio) => !audio.paused);
const pauseAll = () => players().forEach((audio) => audio.pause());
// Rejected if the page was left in the meantime, which is harmless.
const play = (audio) => audio?.play().catch(() => {});
const item = () => study.items[position];
const sayAll = (end) => `All ${study.items.length} pairs are answered. ${end}`;

let study = null;
let form = FORMS.dialogues;
let position = 0;
let saving = false;
// Started recordings, the one that Space resumes, and the parts played to the end.
const started = new Set();
let current = null;
let scope = PARTS;

async function ask(path, given) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(path, given && { method: "POST", headers, body: JSON.stringify(given) });
  const content = await response.json();
  if (!response.ok) throw new Error(typeof content.detail === "string" ? content.detail : "Reload this page.");
  return content;
}

function say(text, isBad = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", isBad);
}

function makeTurn(turn, index, partName) {
  const entry = element("li", {});
  const who = turn.role ? `${index + 1}. ${SPEAKERS[turn.role] ?? turn.role}` : "";
  if (who) entry.append(element("span", { className: "who", textContent: who }));
  entry.append(element("p", { textContent: turn.text || "(no transcript)" }));
  if (!turn.audio) return entry;
  const audio = element("audio", { controls: true, preload: "metadata", src: `/audio/${turn.audio}` });
  audio.ariaLabel = who ? `${partName}, turn ${who}` : partName;
  audio.addEventListener("play", () => {
    players().filter((other) => other !== audio).forEach((other) => other.pause());
    current = audio;
    started.add(audio.src);
    entry.scrollIntoView({ block: "nearest" });
  });
  audio.addEventListener("ended", () => {
    const queue = players(scope);
    current = queue.includes(audio) ? queue[queue.indexOf(audio) + 1] : null;
    play(current);
  });
  audio.addEventListener("error", () => say("A recording of this pair cannot be played; please tell the person who runs the study.", true));
  for (const event of ["play", "pause"]) audio.addEventListener(event, showPlaying);
  entry.append(audio);
  return entry;
}

function showPlaying() {
  for (const audio of players()) audio.parentElement.classList.toggle("playing", !audio.paused);
  for (const button of all(".play")) {
    const { part } = button.dataset;
    button.textContent = `${isPlaying([part]) ? "Pause" : "Play"} ${NAMES[part] ?? form.shared}`;
  }
}

function toggle(parts) {
  if (isPlaying(parts)) return pauseAll();
  const queue = players(parts);
  scope = parts;
  play(queue.includes(current) ? current : queue[0]);
}

function show(newPosition) {
  pauseAll();
  position = Math.min(Math.max(newPosition, 0), study.items.length - 1);
  current = null;
  for (const part of PARTS) {
    // Turn numbers of A and B continue from the shared beginning.
    const before = part === "context" ? 0 : item().context.length;
    const name = NAMES[part] ?? form.shared.replace(/^./, (letter) => letter.toUpperCase());
    const turns = item()[part].map((turn, offset) => makeTurn(turn, before + offset, name));
    byId(part).querySelector(".turns").replaceChildren(...turns);
    const hidden = part !== "context" && !form.hear.includes(part);
    Object.assign(byId(part).querySelector(".play"), { disabled: players([part]).length === 0, hidden });
  }
  showPlaying();
  byId("context").hidden = item().context.length === 0;
  byId("question").textContent = item().question;
  const total = study.items.length;
  const answered = Object.keys(study.answers).length;
  byId("count").textContent = `Pair ${position + 1} of ${total}, ${answered} answered`;
  Object.assign(byId("progress"), { max: total, value: answered });
  byId("back").disabled = position === 0;
  byId("forth").disabled = position === total - 1;
  byId("open").disabled = answered === total;
  for (const button of all("[data-choice]")) {
    button.ariaPressed = String(study.answers[item().item] === button.dataset.choice);
  }
  window.scrollTo(0, 0);
  byId("question").focus({ preventScroll: true });
}

function findUnanswered(from = 0) {
  const order = [...study.items.keys()];
  const turned = [...order.slice(from), ...order.slice(0, from)];
  return turned.find((index) => !(study.items[index].item in study.answers));
}

async function choose(choice) {
  if (saving || (choice === "tie" && !study.allow_tie)) return;
  saving = true;
  say("Saving");
  const heard = form.hear.filter((part) => players([part]).every((audio) => started.has(audio.src)));
  try {
    await ask("/api/answers", { item: item().item, choice, heard, rater: study.rater });
    study.answers[item().item] = choice;
    const saved = `Saved for pair ${position + 1}: ${NAMES[choice]}.`;
    const next = findUnanswered(position + 1);
    show(next ?? position);
    say(next === undefined ? `${saved} ${sayAll("Thank you. You can go back and change answers, or close this page.")}` : saved);
  } catch (error) {
    say(`Not saved: ${error.message} Choose again.`, true);
  } finally {
    saving = false;
  }
}

function onKey(event) {
  if (byId("rating").hidden || event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  const inPlayer = event.target.closest("audio");
  const choice = KEYS[event.key.toLowerCase()];
  if (choice) choose(choice);
  else if (event.key === " " && !event.target.closest("audio, button, a")) toggle(PARTS);
  else if (event.key === "ArrowLeft" && !inPlayer) show(position - 1);
  else if (event.key === "ArrowRight" && !inPlayer) show(position + 1);
  else return;
  event.preventDefault();
}

function showWelcome() {
  const isFirst = !study.items;
  pauseAll();
  choosePage("welcome");
  byId("agree").required = isFirst;
  byId("agreement").hidden = !isFirst;
  byId("name").required = isFirst && study.rater === null;
  byId("name-field").hidden = !byId("name").required;
  byId("begin").textContent = isFirst ? "Begin" : "Back to the pairs";
  byId("welcome-title").focus({ preventScroll: true });
}

function choosePage(id) {
  for (const page of ["welcome", "rating"]) byId(page).hidden = page !== id;
  window.scrollTo(0, 0);
}

async function begin(event) {
  event.preventDefault();
  if (study.items) return choosePage("rating");
  try {
    study = await ask("/api/consent", { agrees: byId("agree").checked, rater: study.rater ?? byId("name").value });
    openStudy();
  } catch (error) {
    byId("welcome-status").textContent = error.message;
  }
}

function openStudy() {
  choosePage("rating");
  form = FORMS[study.form];
  document.body.dataset.form = study.form;
  document.title = byId("title").textContent = form.title;
  byId("context-title").textContent = form.heading;
  byId("rater").textContent = `Your name in this study: ${study.rater}`;
  for (const part of [document.querySelector("[data-choice=tie]"), byId("tie-key")]) part.hidden = !study.allow_tie;
  const next = findUnanswered();
  show(next ?? study.items.length - 1);
  if (next === undefined) say(sayAll("You can go back and change answers."));
}

async function start() {
  try {
    study = await ask("/api/study");
  } catch (error) {
    choosePage("rating");
    say(`The study cannot be loaded: ${error.message} Reload this page when the server runs again.`, true);
    return;
  }
  for (const id of ["instructions", "consent"]) {
    const paragraphs = study.texts[id].split(/\n\s*\n/);
    byId(id).replaceChildren(...paragraphs.map((text) => element("p", { textContent: text.trim() })));
  }
  for (const button of all(".play")) button.addEventListener("click", () => toggle([button.dataset.part]));
  for (const button of all("[data-choice]")) button.addEventListener("click", () => choose(button.dataset.choice));
  byId("back").addEventListener("click", () => show(position - 1));
  byId("forth").addEventListener("click", () => show(position + 1));
  byId("open").addEventListener("click", () => show(findUnanswered(position) ?? position));
  byId("again").addEventListener("click", showWelcome);
  byId("begin-form").addEventListener("submit", begin);
  document.addEventListener("keydown", onKey);
  if (study.items) openStudy();
  else showWelcome();
}

start();
