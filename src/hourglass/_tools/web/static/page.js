"use strict";
// The pages work without this file. It adds local times, live updates, keys and confirmations.

const two = (n) => String(n).padStart(2, "0");

// Return the reader's time zone at a time: "UTC", or the offset, such as "+02:00".
function zone(at) {
  const ahead = -at.getTimezoneOffset();
  if (!ahead) return "UTC";
  return `${ahead < 0 ? "-" : "+"}${two(Math.floor(Math.abs(ahead) / 60))}:${two(Math.abs(ahead) % 60)}`;
}

function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    element.textContent = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())} ${zone(at)}`;
    if (!element.title) element.title = `${at.toISOString()}`;
  }
}

// Fragments may be expensive to render: keep the displayed ones for a while, even if the page changes.
const fetched = new Map(), MIN_AGE = 10000, RETRY_DELAY = 2000;

async function fetchInto(element) {
  fetched.set(element.dataset.fetch, Date.now());
  const answer = await fetch(element.dataset.fetch).catch(() => null);
  if (answer && answer.ok) {
    const text = await answer.text();
    // The region around it may have been replaced meanwhile.
    const place = element.isConnected ? element : [...document.querySelectorAll("[data-fetch]")].find((each) => each.dataset.fetch === element.dataset.fetch);
    if (!place) return;
    place.innerHTML = text;
    localTimes(place);
  } else if (!answer || answer.status === 503) {
    // The engine is unavailable or overloaded: retry.
    setTimeout(() => { if (element.isConnected) fetchInto(element); }, RETRY_DELAY);
  }
}

// Replace a region, and keep the reader's state in it: ticked boxes, opened details, typed text, scroll positions.
function swap(old, fresh) {
  const ticked = new Set([...old.querySelectorAll("input[type=checkbox]:checked")].map((each) => each.value));
  const opened = [...old.querySelectorAll("details")].map((each) => each.open);
  const typed = new Map([...old.querySelectorAll("input[name]:not([type=checkbox]):not([type=hidden]),textarea[name]")].map((each) => [each.name, each.value]));
  const scrolled = [...old.querySelectorAll("ol,pre")].map((each) => each.scrollTop);
  const kept = new Map([...old.querySelectorAll("[data-fetch]")].map((each) => [each.dataset.fetch, each.innerHTML]));
  const focused = document.activeElement && old.contains(document.activeElement) ? document.activeElement.name : "";
  const at = old.querySelector(".at a[href]");
  old.innerHTML = fresh.innerHTML;
  const again = at && [...old.querySelectorAll("tr a[href], .waterfall li a[href]")].find((each) => each.href === at.href);
  if (again) again.closest("tr, li").classList.add("at");
  for (const each of old.querySelectorAll("[data-fetch]")) if (kept.has(each.dataset.fetch)) each.innerHTML = kept.get(each.dataset.fetch);
  for (const each of old.querySelectorAll("input[type=checkbox]")) each.checked = ticked.has(each.value);
  [...old.querySelectorAll("details")].forEach((each, index) => { if (opened[index]) each.open = true; });
  for (const each of old.querySelectorAll("input[name]:not([type=checkbox]):not([type=hidden]),textarea[name]")) if (typed.has(each.name)) each.value = typed.get(each.name);
  [...old.querySelectorAll("ol,pre")].forEach((each, index) => { if (scrolled[index]) each.scrollTop = scrolled[index]; });
  if (focused) { const again = old.querySelector(`[name="${CSS.escape(focused)}"]`); if (again) again.focus(); }
  localTimes(old);
  for (const each of old.querySelectorAll("[data-fetch]")) if (!each.matches("[data-dear]") || Date.now() - (fetched.get(each.dataset.fetch) || 0) > MIN_AGE) fetchInto(each);
  counted();
}

// The latest content of each region from the server: an unchanged region is not replaced.
const shown = new WeakMap();

// Do not replace content under a pressed pointer, because the click would be lost.
let pressed = false;
document.addEventListener("pointerdown", () => { pressed = true; }, { capture: true });
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { pressed = false; }, { capture: true });
function released() {
  if (!pressed) return null;
  return new Promise((go) => document.addEventListener("pointerup", () => setTimeout(go, 0), { once: true }));
}

async function refresh(url) {
  const answer = await fetch(url).catch(() => null);
  if (!answer || !answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  await released();
  for (const region of document.querySelectorAll("[id^=live-]")) {
    const found = fresh.getElementById(region.id);
    if (found && found.innerHTML !== shown.get(region)) { shown.set(region, found.innerHTML); swap(region, found); }
  }
}

function follow(region) {
  const source = new EventSource(region.dataset.live);
  const trouble = document.getElementById("trouble");
  let waiting = false, lost = false;
  const showTrouble = (message) => { trouble.textContent = message; trouble.hidden = !message; };
  source.addEventListener("change", () => {
    if (waiting) return;
    waiting = true;
    const due = async () => { waiting = false; await refresh(location.href); };
    if (document.hidden) document.addEventListener("visibilitychange", due, { once: true }); else due();
  });
  source.addEventListener("trouble", (event) => showTrouble(JSON.parse(event.data).message));
  source.addEventListener("well", () => { showTrouble(""); if (region.dataset.returns !== undefined) location.reload(); });
  source.onerror = () => { lost = true; showTrouble("the server of this web UI does not respond"); };
  source.onopen = () => { if (lost) { lost = false; showTrouble(""); refresh(location.href); } };
}

function counted() {
  const label = document.querySelector("[data-chosen]");
  if (!label) return;
  const chosen = document.querySelectorAll("input[name=run]:checked").length;
  label.textContent = chosen ? `${chosen} selected` : "Selected workflows";
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) for (const each of document.querySelectorAll("input[name=run]")) each.checked = event.target.checked;
  if (event.target.matches(".slider input")) event.target.form.requestSubmit();
  counted();
});

// Zoom in by dragging over the bars; the server draws the selected range.
let drag = null;
const placeIn = (svg, x) => { const box = svg.getBoundingClientRect(); return Math.min(1, Math.max(0, (x - box.left) / box.width)); };
document.addEventListener("mousedown", (event) => {
  const svg = event.button === 0 && event.target.closest && event.target.closest(".waterfall svg");
  if (svg) drag = { svg, x: event.clientX, from: placeIn(svg, event.clientX) };
});
document.addEventListener("mousemove", (event) => { if (drag && Math.abs(event.clientX - drag.x) > 6) event.preventDefault(); });
document.addEventListener("mouseup", (event) => {
  if (!drag) return;
  const { svg, x, from } = drag;
  drag = null;
  if (Math.abs(event.clientX - x) <= 6) return;
  const fall = svg.closest(".waterfall"), start = BigInt(fall.dataset.from), length = BigInt(fall.dataset.to) - start;
  const at = (share) => start + (length * BigInt(Math.round(share * 1e6))) / 1000000n;
  const [low, high] = [from, placeIn(svg, event.clientX)].sort((a, b) => a - b);
  const url = new URL(location.href);
  url.searchParams.set("from", at(low)); url.searchParams.set("to", at(high));
  document.addEventListener("click", (click) => { click.preventDefault(); click.stopPropagation(); }, { once: true, capture: true });
  location.assign(url);
});
document.addEventListener("dragstart", (event) => { if (event.target.closest(".waterfall")) event.preventDefault(); });

// Show the selected step below the bars without scrolling.
document.addEventListener("click", async (event) => {
  const link = event.target.closest && event.target.closest("a[data-step]");
  if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.replaceState(null, "", link.href);
  await refresh(link.href);
});

// Show the fields of the selected message of the loaded code.
function showFields(form) {
  const name = form.elements.name.value.trim(), all = [...form.querySelectorAll("template")];
  const found = all.find((each) => each.dataset.of === name) || all.find((each) => each.dataset.of === "");
  const place = form.querySelector(".arguments");
  if (place.dataset.shown === found.dataset.of) return;
  place.dataset.shown = found.dataset.of;
  place.replaceChildren(found.content.cloneNode(true));
}
document.addEventListener("input", (event) => { if (event.target.matches("[data-messages] [name=name]")) showFields(event.target.form); });
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-message]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const form = link.closest("form");
  form.elements.name.value = link.dataset.message;
  showFields(form);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-confirm]");
  if (button && !window.confirm(button.dataset.confirm)) event.preventDefault();
});

// Complete the field name before the cursor in the filter.
document.addEventListener("keydown", (event) => {
  const field = event.target;
  if (event.key === "Tab" && field.dataset && field.dataset.complete && !event.shiftKey) {
    const before = field.value.slice(0, field.selectionStart);
    const word = /[A-Za-z]+$/.exec(before);
    const found = word && field.dataset.complete.split(" ").find((each) => each.toLowerCase().startsWith(word[0].toLowerCase()) && each !== word[0]);
    if (found) {
      event.preventDefault();
      field.setRangeText(found, field.selectionStart - word[0].length, field.selectionStart, "end");
    }
    return;
  }
  if (event.target.matches("input,textarea,select") && event.key !== "Escape") return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && event.target.blur) { event.target.blur(); return; }
  const keyed = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === event.key);
  if (keyed) { event.preventDefault(); if (keyed.href) keyed.click(); else keyed.focus(); return; }
  const rows = [...document.querySelectorAll("table.list tbody tr, .waterfall li")].filter((row) => row.querySelector("a"));
  if (!rows.length || !["j", "k", "Enter"].includes(event.key)) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  if (event.key === "Enter") { if (at >= 0) rows[at].querySelector(".id a, a").click(); return; }
  const next = Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)));
  rows.forEach((row, index) => row.classList.toggle("at", index === next));
  rows[next].scrollIntoView({ block: "nearest" });
});

document.addEventListener("DOMContentLoaded", () => {
  for (const region of document.querySelectorAll("[id^=live-]")) shown.set(region, region.innerHTML);
  localTimes(document);
  for (const each of document.querySelectorAll("[data-fetch]")) fetchInto(each);
  for (const each of document.querySelectorAll("[data-live]")) follow(each);
});
