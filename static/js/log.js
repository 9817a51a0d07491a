/* A log that follows: asks for what was written since, and stays at the end unless the reader scrolled up. */
import {copy} from "./app.js";

const box = document.querySelector("[data-log]");
const task = document.querySelector("[data-log-task]");
const follow = document.querySelector("[data-log-follow]");
const MOST = 2_000_000;
let offset = 0, busy = false, generation = 0;
let decoder = new TextDecoder();

async function more() {
  if (busy || document.hidden) return;
  busy = true;
  const own = generation;
  try {
    const query = new URLSearchParams({task: task?.value ?? "0", offset: String(offset)});
    const answer = await fetch(`${box.dataset.log}?${query}`, {headers: {Accept: "text/plain"}});
    if (!answer.ok || own !== generation) return;
    const bytes = await answer.arrayBuffer();
    const next = answer.headers.get("Log-Next-Offset");
    if (own !== generation || bytes.byteLength === 0) return;
    offset = next === null ? offset + bytes.byteLength : Number(next);
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.append(decoder.decode(bytes, {stream: true}));
    if (box.textContent.length > MOST) box.textContent = box.textContent.slice(-MOST / 2);
    if (follow.checked && atEnd) box.scrollTop = box.scrollHeight;
  } catch {
    // The connection is gone for now; the next round tries again.
  } finally {
    busy = false;
  }
}

function restart() {
  generation += 1;
  offset = 0;
  decoder = new TextDecoder();
  box.textContent = "";
  more();
}

task?.addEventListener("change", restart);
follow?.addEventListener("change", () => { if (follow.checked) box.scrollTop = box.scrollHeight; });
document.querySelector("[data-log-copy]")?.addEventListener("click", (event) => copy(box.textContent, event.currentTarget));
document.addEventListener("live:job", more);
setInterval(more, 2000);
more();
