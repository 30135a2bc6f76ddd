// Plays the answer in the page. A step is a <span>. Its children are its tokens, in the order they were generated.
const [play, seek, status, tip, now] = ["play", "seek", "status", "tip", "now"].map(byId);
const steps = [...document.querySelectorAll("#answer > span")];
const times = steps.map((step) => step.dataset.times.split(" ").map(Number)); // start of the draft, end of the draft, end of the step
const whole = steps.length ? times[steps.length - 1][2] : 0;
const written = [0]; // tokens of the answer after each step
for (const step of steps) written.push(written.at(-1) + Number(step.dataset.written));

const READING = "reading the prompt";

let shown = steps.length; // steps shown whole
let clock = whole; // seconds into the run
let frame = 0; // the next animation frame; 0 while paused
let lastFrame = 0;
let drafted = []; // draft tokens shown before they are verified
let end = null; // the last token shown

const seconds = (s) => (whole < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(whole < 100 ? 2 : 1)} s`);

/** Show the first `count` steps, and the part of the next draft that existed at `time`. */
function show(count, time = -1) {
  const followed = end && inView(end);
  for (; shown < count; shown++) steps[shown].classList.remove("later");
  for (; shown > count; shown--) steps[shown - 1].classList.add("later");
  for (const token of drafted) token.classList.remove("drafted");
  drafted = [];
  if (shown < steps.length && time >= times[shown][0]) {
    const [begins, ends] = times[shown];
    const draft = [...steps[shown].querySelectorAll("i, del")];
    const share = time < ends ? (time - begins) / (ends - begins) : 1;
    drafted = draft.slice(0, Math.ceil(share * draft.length));
    for (const token of drafted) token.classList.add("drafted");
  }
  end?.classList.remove("end");
  end = drafted.at(-1) ?? steps[shown - 1]?.lastElementChild ?? null;
  if (shown < steps.length || frame) end?.classList.add("end");
  if (frame && followed && !inView(end)) end.scrollIntoView({ block: "center" });
  showStatus();
}

function inView(token) {
  const box = token.getBoundingClientRect();
  return box.top >= byId("controls").getBoundingClientRect().bottom && box.bottom <= innerHeight;
}

/** Update the position in the run, and the list of the last step's tokens and their results. */
function showStatus() {
  const step = steps[shown - 1];
  const place = step ? `step ${shown - 1} of ${steps.length - 1}, token ${written[shown]} of ${written.at(-1)}` : READING;
  status.textContent = `${place}, ${seconds(clock)} of ${seconds(whole)}`;
  seek.value = shown;
  seek.setAttribute("aria-valuetext", place);
  play.textContent = frame ? "\u275a\u275a\ufe0e Pause" : "\u25b6\ufe0e Play";
  now.setAttribute("aria-live", frame ? "off" : "polite");
  if (now.step === step) return;
  now.step = step;
  byId("headline").textContent = step ? step.dataset.headline : READING;
  const tokens = [...(step?.children ?? [])];
  byId("rows").replaceChildren(...tokens.map((token) => row(token.localName, token.textContent, aboutOf(token))));
}

/** The text of a token's tooltip. It is moved out of the title, so that the browser shows no second one. */
function aboutOf(token) {
  token.dataset.about ??= token.title;
  token.removeAttribute("title");
  return token.dataset.about;
}

function tick(stamp) {
  clock = Math.min(clock + (Math.max(0, Math.min(stamp - lastFrame, 250)) / 1000) * byId("speed").value, whole);
  lastFrame = stamp;
  let count = shown;
  while (count < steps.length && times[count][2] <= clock) count++;
  frame = count < steps.length ? requestAnimationFrame(tick) : 0;
  show(count, clock);
}

function toggle() {
  if (frame) {
    cancelAnimationFrame(frame);
    frame = 0;
    showStatus();
  } else {
    if (shown === steps.length) {
      go(0);
      byId("answer").scrollIntoView({ block: "nearest" });
    }
    lastFrame = performance.now();
    frame = requestAnimationFrame(tick);
    showStatus();
  }
}

/** Go to the end of step `count`, and stop there. */
function go(count) {
  cancelAnimationFrame(frame);
  frame = 0;
  count = Math.max(0, Math.min(count, steps.length));
  clock = count ? times[count - 1][2] : 0;
  show(count);
  end?.scrollIntoView({ block: "nearest" });
}

const back = () => go(shown - 1);
const forward = () => go(shown + 1);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const field = event.target.closest("button, select, input");
  const action = { " ": toggle, ArrowLeft: back, ArrowRight: forward }[event.key];
  const own = event.key === " " ? field && field !== seek : field && field.localName !== "button";
  if (!action || own) return; // the field itself uses the key
  event.preventDefault();
  action();
});

document.addEventListener("pointerover", (event) => {
  const token = event.target.closest("#answer > span > *");
  tip.hidden = !token;
  if (!token) return;
  tip.textContent = aboutOf(token);
  placeTip(tip, token, event.clientX);
});
document.addEventListener("scroll", () => (tip.hidden = true), { passive: true });

if (steps.length) {
  for (const [id, action] of Object.entries({ play: toggle, back, step: forward })) {
    byId(id).addEventListener("click", action);
    byId(id).addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus, so that the space bar still plays
  }
  seek.addEventListener("input", () => go(Number(seek.value)));
  byId("controls").hidden = now.hidden = false;
  showStatus();
}
