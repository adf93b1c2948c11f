// Asks the gateway every second and shows the answers. Whatever comes from it is set as text.
"use strict";

const EVERY = 1000;
const KEPT_RATES = 120;
const KEPT_EVENTS = 100;
const SHOWN_FLOWS = 100;

const at = (id) => document.getElementById(id);
/* The peer that the page is about: of several the first, if none is named. */
const peer = new URLSearchParams(location.search).get("peer");
const about = peer ? `?peer=${encodeURIComponent(peer)}` : "";
const rates = { sent: [], received: [] };
let events = [];
let next = 0;
let token = "";

function digits(value) {
  return value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value, step, units) {
  let index = 0;
  while (value >= step && index < units.length - 1) {
    value /= step;
    index += 1;
  }
  return (Number.isInteger(value) ? String(value) : digits(value)) + units[index];
}

const rate = (bits) => scaled(bits, 1000, [" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"]);
const size = (bytes) => scaled(bytes, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
const count = (number) => scaled(number, 1000, ["", " k", " M", " G", " T"]);

function time(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return digits(seconds * 1e6) + " us";
  if (seconds < 1) return digits(seconds * 1e3) + " ms";
  return digits(seconds) + " s";
}

function span(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${seconds.toFixed(1)} s`;
}

function share(part) {
  const percent = part * 100;
  if (percent === 0) return "0 %";
  const places = Math.min(7, Math.max(0, 1 - Math.floor(Math.log10(percent))));
  return percent.toFixed(places) + " %";
}

const known = (value, show) => (value === null || value === undefined ? "-" : show(value));
/* Number and unit stay together. */
const spread = (times) => (times ? `${time(times.median).replace(" ", "\u00a0")} (${time(times.p99).replace(" ", "\u00a0")})` : "-");

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

/* Cells with a line of their own in a narrow window, which may break between words. */
const words = (text) => [text, "whole words"];
/* Such cells that may break anywhere. */
const long = (text) => [text, "whole long"];
const name = (text) => [text, "whole long name"];

function cell(made) {
  const [text, kind] = Array.isArray(made) ? made : [made, ""];
  const it = element("td", text, kind);
  if (it.classList.contains("long")) {
    // An address breaks behind a colon rather than within a number.
    const parts = text.split(/(?<=:)(?=\S)/);
    it.replaceChildren(...parts.flatMap((part, index) => (index > 0 ? [document.createElement("wbr"), part] : [part])));
  }
  return it;
}

/* A row may have one cell more than there are columns: a note, on a line of its own below the others. */
function table(id, head, rows) {
  const top = document.createElement("tr");
  top.append(...head.map((name) => element("th", name)));
  const lines = rows.flatMap((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.slice(0, head.length).map((made, index) => {
      const it = cell(made);
      it.dataset.label = head[index];
      return it;
    }));
    if (cells.length === head.length) return [row];
    row.className = "noted";
    const note = document.createElement("tr");
    note.append(cell(long(cells[head.length])));
    note.firstChild.colSpan = head.length;
    return [row, note];
  });
  at(id).replaceChildren(top, ...lines);
}

function list(id, pairs) {
  at(id).replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

function line(name, bits, most, without) {
  const kept = rates[name];
  kept.push(bits ?? 0);
  if (kept.length > KEPT_RATES) kept.shift();
  const top = Math.max(most, ...kept, 1);
  const place = (value, index) => `${KEPT_RATES - kept.length + index},${23 - (value / top) * 22}`;
  document.querySelector(`#${name}-line polyline`).setAttribute("points", kept.map(place).join(" "));
  at(name).textContent = bits === undefined ? without : `${rate(bits)} of ${rate(most)}`;
}

function showLink(status) {
  const path = status.path;
  const [low, likely, high] = (path?.drop ?? []).map(share);
  list("path", path ? [
    ["Loss", `${likely} (${low} to ${high})`],
    ["RTT", `${time(path.rtt[1])}, at least ${time(path.rtt[0])}`],
    ["Out of order", `${share(path.reordered)}, by up to ${time(path.lag)}`],
    ["Arrives", `${rate(path.delivered_bits)}, ${rate(path.delivered_peak_bits)} at most of late`],
    ["MTU", status.mtu ? `${status.mtu.to_peer} B` : "unknown"],
  ] : [["Path", "nothing is known of it"]]);
  const without = status.session.state === "blocked" ? "nothing crosses" : "no session";
  line("sent", status.rates.wan_sent_bits, status.link_rate, without);
  line("received", status.rates.wan_received_bits, status.link_rate, without);
  table("lanes", ["lane", "state", "share", "loss", "RTT", "left"], status.lanes.map((lane) =>
    [lane.lane, lane.state.replace("_", " "), share(lane.share), known(lane.drop, share), known(lane.rtt, time), lane.leaves]));
}

function showPressure(status) {
  const held = status.buffers;
  const waiting = status.classes.reduce((sum, each) => sum + each.backlog_bytes, 0);
  at("held").value = held.limit > 0 ? held.bytes / held.limit : 0;
  list("pressure", [
    ["Held", `${size(held.bytes)}${held.limit > 0 ? ` of ${size(held.limit)}` : ""} in ${held.count} buffers`],
    ["Waiting", `${size(waiting)}, ${time((waiting * 8) / status.link_rate)} of the link`],
    ["Marked", `${count(status.back_pressure.marked)} packets`],
    ["Notified", `${count(status.back_pressure.notified)} times`],
    ["Refused", `${count(status.back_pressure.refused)} records`],
  ]);
}

/* Why a class has its scheme: the operator says so, or what is expected of the gateway's choice. */
function why(choice) {
  if (!choice) return "Why: the policy names it";
  const of = (it) => `${it.scheme} ${time(it.time[1])} with overhead ${share(it.overhead)}`;
  const said = [choice.because ?? "sessions begin with it"];
  if (choice.missing) said.push(choice.missing);
  if (choice.expected) said.push(`${choice.messages}: ${choice.percentile} % within ${of(choice.expected).replace(/^\S+ /, "")}`);
  if (choice.runners_up.length > 0) said.push(`else ${choice.runners_up.map(of).join(", ")}`);
  return `Why: ${said.join("; ")}`;
}

function showClasses(status) {
  const head = ["class", "scheme", "backlog", "in flight", "sent", "again", "decoded", "lost", "waited (99 %)", "took (99 %)"];
  table("classes", head, status.classes.map((each) => {
    const choice = status.choices.find((it) => it.class === each.name && it.stream === "bulk");
    const scheme = choice?.scheme ? `${each.scheme}: ${choice.scheme}` : each.scheme;
    const numbers = [each.sent, each.repairs, each.decoded, each.abandoned].map(count);
    const spreads = [each.queueing, each.completion].map(spread).map(words);
    return [name(each.name), words(scheme), size(each.backlog_bytes), size(each.in_flight_bytes), ...numbers, ...spreads, why(choice)];
  }));
}

function showSurvival(status) {
  const it = status.survival ?? {};
  const orphaned = it.orphaned > 0 ? `, ${it.orphaned} of the process before` : "";
  const retained = it.retention === "on"
    ? element("dd", `${size(it.bytes)} of ${size(it.limit)} in ${count(it.packets)} packets for ${it.flows} flows${orphaned}`)
    : element("dd", `nothing outlives the process${it.why ? `: ${it.why}` : ""}`, it.retention === "off" ? "down" : "");
  at("survival").replaceChildren(element("dt", "Retained"), retained);
  const members = status.members;
  if (members) {
    const absent = members.absent.length > 0 ? `; absent: ${members.absent.join(", ")}` : "";
    at("survival").append(
      element("dt", "Gateways of the site"),
      element("dd", `live: ${members.live.join(", ") || "none"}${absent}; ${count(members.pairs)} pairs of hosts here, ${count(members.moved)} moved`,
        absent ? "down" : ""));
  }
  if (it.restoring + it.restored + it.unrestored + it.remembered > 0) {
    at("survival").append(
      element("dt", "After a process"), element("dd", `${it.restored} flows restored, ${it.unrestored} ended, ${it.restoring} to come`),
      element("dt", "Kept in mind"), element("dd", `${it.remembered} ended flows`));
  }
}

function showFlows(status, answer) {
  const flows = status.flows;
  at("flow-counts").textContent =
    `${flows.near} near, ${flows.far} far, ${flows.unpaired} unpaired; ${flows.opened} opened, ${flows.failed} failed`;
  const number = (qpn) => (qpn === null || qpn === undefined ? "?" : `0x${qpn.toString(16)}`);
  const rows = answer.flows.map((flow) =>
    [flow.side, flow.state.replace("_", " "), name(flow.class),
      long(`${flow.requester} ${number(flow.requester_qpn)}`), long(`${flow.target} ${number(flow.target_qpn)}`)]);
  const more = answer.total - rows.length;
  table("flows", ["side", "state", "class", "requester, queue pair", "target, queue pair"], rows);
  if (more > 0) at("flow-counts").textContent += `; ${more} more than shown`;
}

function showEvents(answer) {
  // A smaller number than before: the gateway was started again.
  if (answer.next < next) events = [];
  next = answer.next;
  events = [...answer.events.reverse(), ...events].slice(0, KEPT_EVENTS);
  table("events", ["time", "event", ""], events.map((event) =>
    [event.time.replace("T", " ").replace("Z", ""), event.kind, long(event.peer ? `towards ${event.peer}: ${event.text}` : event.text)]));
}

function showState(status) {
  const session = status.session;
  at("title").textContent = `${status.site} - ${status.peer}`;
  const troubles = [["LAN", status.lan], ["WAN", status.wan]].filter(([, side]) => side.state === "down");
  const isUp = session.state === "up" && troubles.length === 0;
  const state = [session.state, ...troubles.map(([name]) => `no ${name}`)].join(", ");
  document.title = `${state}: longhaul ${status.site} - ${status.peer}`;
  const links = status.peers.length > 1 ? status.peers.map((name) => {
    const link = element("a", name);
    link.href = `?peer=${encodeURIComponent(name)}`;
    if (name === status.peer) link.setAttribute("aria-current", "page");
    return link;
  }) : [];
  at("peers").replaceChildren(...links.flatMap((link) => [link, " "]));
  const bulk = Number(status.peer_address.split(":").pop()) + 1;
  const hint = session.state === "blocked" && status.wan.state !== "down"
    ? `; no data crosses: to the peer ${session.to_peer}, from the peer ${session.from_peer}; is UDP port ${bulk} open both ways?` : "";
  const age = session.last_error_age == null ? "" : `, ${span(session.last_error_age)} ago`;
  const error = session.last_error ? `; last error: ${session.last_error}${age}` : "";
  const rest = ` for ${span(session.since)}; version ${status.version}, up for ${span(status.uptime)}${hint}${error}`;
  const why = troubles.map(([name, side]) => element("span", `; ${name} down for ${span(side.down_for)}: ${side.why}`, "down"));
  const certificates = status.certificates ?? [];
  at("certificates").replaceChildren(...certificates.flatMap((each, index) =>
    [index > 0 ? "; " : "Certificates: ",
      element("span", `${each.of} ${each.is_expired ? "EXPIRED" : "expires"} ${each.expires.slice(0, 10)}`, each.is_due ? "date down" : "date")]));
  at("state").replaceChildren(element("span", state, isUp ? "up" : "down"), rest, ...why);
}

class Refused extends Error {}

async function get(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (answer.status === 401) throw new Refused("the gateway asks for its token");
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function show() {
  try {
    const status = await get(`status${about}`);
    const flows = await get(`flows${about}${about ? "&" : "?"}most=${SHOWN_FLOWS}`);
    let news = await get(`events?from=${next}`);
    if (news.next < next) {
      next = 0;
      events = [];
      news = await get("events?from=0");
    }
    showState(status);
    showLink(status);
    showPressure(status);
    showSurvival(status);
    showClasses(status);
    showFlows(status, flows);
    showEvents(news);
    at("ask").hidden = true;
    document.body.classList.remove("stale");
  } catch (error) {
    at("ask").hidden = !(error instanceof Refused);
    at("state").replaceChildren(element("span", `no answer: ${error.message}`, "down"));
    document.body.classList.add("stale");
  }
  setTimeout(show, EVERY);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value;
});
show();
