//! The screen of `longhaul top`, drawn from a view and nothing else.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use reliability::human;

use super::View;
use crate::admin::{CertificateStatus, ChoiceStatus, ClassStatus, Flow, LaneStatus, Status, Surroundings};
use crate::logs::printable;

/// Cells of a bar at least and at most: a quarter of the screen.
const BAR: [usize; 2] = [10, 50];
/// From this width on the table of classes has more numbers.
const WIDE: usize = 120;
/// Width of the names in front of values.
const NAME: usize = 9;
/// Lines of classes and of lanes at most; the rest is counted.
const MOST: usize = 6;

const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Draws `view` over the whole frame.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let Some(status) = &view.status else {
        let text = view.error.as_deref().map_or_else(|| "asking the gateway".to_owned(), printable);
        frame.render_widget(Paragraph::new(text), frame.area());
        return;
    };
    let width = usize::from(frame.area().width);
    let head = all_fitted(head(status, view.error.as_deref(), width), frame.area());
    let classes = status.classes.len().min(MOST);
    let more = usize::from(status.classes.len() > MOST);
    // Half of what is left is for flows, unless they need less.
    let fixed = head.len() + classes + more + 5;
    let left = usize::from(frame.area().height).saturating_sub(fixed);
    let flows = view.flows.flows.len().max(1).min(left / 2);
    let heights = [head.len(), classes + more + 2, flows + 2];
    let [above, of_classes, of_flows] = heights.map(|height| Constraint::Length(clamp(height)));
    let areas = Layout::vertical([above, of_classes, of_flows, Constraint::Min(0)]);
    let [above, of_classes, of_flows, below] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(head), above);
    draw_classes(frame, of_classes, status);
    draw_flows(frame, of_flows, view, flows);
    draw_events(frame, below, view);
}

fn clamp(value: usize) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

fn all_fitted(lines: Vec<Line<'static>>, area: Rect) -> Vec<Line<'static>> {
    lines.into_iter().map(|line| fitted(line, area.width.into())).collect()
}

/// Cuts what the screen has no room for, and shows that it did.
fn fitted(line: Line<'static>, width: usize) -> Line<'static> {
    if line.width() <= width {
        return line;
    }
    let mut left = width.saturating_sub(1);
    let mut spans = Vec::with_capacity(line.spans.len() + 1);
    for span in line.spans {
        let text: String = span.content.chars().take(left).collect();
        left -= text.chars().count();
        spans.push(Span::styled(text, span.style));
    }
    spans.push(Span::raw(CUT));
    Line { spans, ..line }
}

/// Cuts a cell of a table in the same way.
fn cut(text: String, width: usize) -> String {
    match text.chars().count() <= width {
        true => text,
        false => text.chars().take(width.saturating_sub(1)).collect::<String>() + CUT,
    }
}

/// Stands where text goes on that there is no room for.
const CUT: &str = "\u{2026}";

fn named(name: &str, value: impl Into<Span<'static>>) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{name:<NAME$}"), HEADING), value.into()])
}

/// The lines above the tables.
fn head(status: &Status, error: Option<&str>, width: usize) -> Vec<Line<'static>> {
    let Status { version, site, peer, peer_address, uptime, .. } = status;
    let title = format!("longhaul {version}   {site} - {peer} at {peer_address}   up for ");
    let mut lines = vec![Line::styled(format!("{title}{}   q ends", human::span(*uptime)), HEADING)];
    match error {
        Some(error) => lines.push(named("stale", Span::styled(printable(error), BAD))),
        None => lines.extend(session(status, width)),
    }
    lines.extend(peers(status));
    lines.extend(sides(status));
    lines.extend(link(status, width));
    lines.extend(lanes(status));
    let held = &status.buffers;
    let part = ratio(held.bytes as f64, held.limit as f64);
    let text = format!("{} {} of {}", bar(part, width), human::size(held.bytes), human::size(held.limit));
    lines.push(named("buffers", text));
    lines.push(named("pressure", pressure(status)));
    lines.extend(survival(status));
    lines
}

/// Which one of several is shown.
fn peers(status: &Status) -> Option<Line<'static>> {
    let place = status.peers.iter().position(|name| *name == status.peer)?;
    let text = format!("{} of {}; n shows the next", place + 1, status.peers.len());
    (status.peers.len() > 1).then(|| named("peer", text))
}

/// One line, or another one for an error that the first has no room for.
fn session(status: &Status, width: usize) -> Vec<Line<'static>> {
    let session = &status.session;
    let style = if session.is_up() { GOOD } else { BAD };
    let mut line = named("session", Span::styled(printable(&session.state), style));
    let mut text = format!(" for {}, {} set up", human::span(session.since), session.established);
    if session.waiting > 0 {
        text += &format!(", {} flows wait", session.waiting);
    }
    let error = session.error_with_age().map(|error| format!("last error: {}", printable(&error)));
    let used = line.width() + text.chars().count() + "; ".len();
    let mut lines = Vec::new();
    match error {
        Some(error) if used + error.chars().count() <= width => text += &format!("; {error}"),
        Some(error) => lines.push(named("", error)),
        None => {}
    }
    line.push_span(text);
    lines.insert(0, line);
    lines
}

/// A line if the gateway was told to stop, for each side that is down, and for
/// certificates that want renewal.
fn sides(status: &Status) -> impl Iterator<Item = Line<'static>> {
    let surroundings = &status.surroundings;
    let Surroundings { lan, wan, certificates, .. } = surroundings;
    let due: Vec<_> = certificates.iter().filter(|each| each.is_due).map(CertificateStatus::text).collect();
    let due = (!due.is_empty()).then(|| due.join("; "));
    let stopping = ("stopping", surroundings.stopping());
    let troubles = [stopping, ("lan", lan.trouble()), ("wan", wan.trouble()), ("certs", due)];
    troubles.into_iter().filter_map(|(name, trouble)| {
        trouble.map(|trouble| named(name, Span::styled(printable(&trouble), BAD)))
    })
}

fn link(status: &Status, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let path = status.path.as_ref().map(|path| {
        let [low, likely, high] = path.drop.map(human::share);
        let [least, smoothed, _] = path.rtt.map(human::seconds);
        format!("loss {likely} ({low} to {high}), RTT {smoothed}, at least {least}")
    });
    lines.push(named("link", path.unwrap_or_else(|| "nothing is known of the path".to_owned())));
    let rate = status.link_rate as f64;
    for (name, bits) in [("  to", status.rates.wan_sent_bits), ("  from", status.rates.wan_received_bits)] {
        let text = match bits {
            Some(bits) => {
                format!("{} {} of {}", bar(ratio(bits, rate), width), human::rate(bits), human::rate(rate))
            }
            None if status.session.is_blocked() => format!("{} nothing crosses", bar(0.0, width)),
            None => format!("{} no session", bar(0.0, width)),
        };
        lines.push(named(name, text));
    }
    lines
}

/// One line if all are in use: what each gets; otherwise one each.
fn lanes(status: &Status) -> Vec<Line<'static>> {
    let shown = status.lanes.iter().take(MOST).map(|lane| {
        let text = lane.to_string();
        let (name, rest) = text.split_at_checked(NAME).unwrap_or(("", &text));
        named(name.trim_end(), Span::styled(rest.to_owned(), lane_style(lane)))
    });
    let mut lines: Vec<_> = shown.collect();
    if let more @ 1.. = status.lanes.len().saturating_sub(MOST) {
        lines.push(named("", format!("{more} more lanes")));
    }
    lines
}

fn lane_style(lane: &LaneStatus) -> Style {
    if lane.is_in_use() { Style::new() } else { BAD }
}

fn pressure(status: &Status) -> String {
    let waiting: u64 = status.classes.iter().map(|class| class.backlog_bytes).sum();
    let wait = ratio(waiting as f64 * 8.0, status.link_rate as f64);
    let told = &status.back_pressure;
    let size = human::size(waiting);
    let wait = if waiting > 0 { format!("{size}, {} of link", human::seconds(wait)) } else { size };
    format!("{wait} wait; {} marked, {} notified, {} refused", told.marked, told.notified, told.refused)
}

/// Says how much is retained, or why nothing is, and what became of flows whose process ended.
fn survival(status: &Status) -> impl Iterator<Item = Line<'static>> {
    let survival = &status.surroundings.survival;
    let style = if survival.is_off() { BAD } else { Style::new() };
    let is_known = !survival.retention.is_empty();
    let retained = is_known.then(|| named("survive", Span::styled(printable(&survival.retained()), style)));
    retained.into_iter().chain(survival.flows().map(|flows| named("", flows)))
}

/// A share of the whole; 0 where there is none.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// `width`: the screen's.
fn bar(share: f64, width: usize) -> String {
    let [least, most] = BAR;
    let cells = (width / 4).clamp(least, most);
    let full = (share.clamp(0.0, 1.0) * cells as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(cells.saturating_sub(full)))
}

/// A column of numbers: its name, its width, and its text for a class.
type Numbers = (&'static str, usize, fn(&ClassStatus) -> String);

/// The columns of numbers, of which a screen that is not wide has the first.
static NUMBERS: [Numbers; 8] = [
    ("backlog", 8, |class| human::size(class.backlog_bytes)),
    ("flying", 8, |class| human::size(class.in_flight_bytes)),
    ("sent", 6, |class| human::si(class.sent as f64)),
    ("again", 6, |class| human::si(class.repairs as f64)),
    ("lost", 6, |class| human::si(class.abandoned as f64)),
    ("parity", 6, |class| human::si(class.parity as f64)),
    ("decoded", 7, |class| human::si(class.decoded as f64)),
    // Of messages, from their first packet to their target's answer.
    ("p99", 7, |class| class.completion.map_or_else(|| "-".to_owned(), |times| human::seconds(times.p99))),
];
/// How many of them every screen has.
const NARROW: usize = 5;

fn draw_classes(frame: &mut Frame<'_>, area: Rect, status: &Status) {
    let width = usize::from(area.width);
    let shown = if width >= WIDE { NUMBERS.len() } else { NARROW };
    let numbers = NUMBERS.get(..shown).unwrap_or_default();
    let shown: Vec<_> = status.classes.iter().take(MOST).collect();
    let texts: Vec<_> = shown
        .iter()
        .map(|class| [printable(&class.name), status.scheme_of(class), why(status, class)])
        .collect();
    // Names and schemes get what they need, up to a third of the room that numbers leave.
    let taken: usize = numbers.iter().map(|(_, width, _)| width + 1).sum();
    let left = width.saturating_sub(taken + 2);
    let longest = |place: usize, least: usize| {
        let texts = texts.iter().filter_map(|texts| texts.get(place));
        let needed = texts.map(|text| text.chars().count()).max().unwrap_or(0);
        needed.clamp(least, (left / 3).max(least))
    };
    let (of_name, of_scheme) = (longest(0, 9), longest(1, 15));
    let of_why = left.saturating_sub(of_name + of_scheme).max(10);
    let rows = shown.iter().zip(&texts).map(|(class, [name, scheme, why])| {
        let numbers = numbers.iter().map(|(_, _, text)| text(class));
        let named = [cut(name.clone(), of_name), cut(scheme.clone(), of_scheme)];
        Row::new(named.into_iter().chain(numbers).chain([cut(why.clone(), of_why)]))
    });
    let mut rows: Vec<_> = rows.collect();
    if let more @ 1.. = status.classes.len().saturating_sub(MOST) {
        rows.push(Row::new([format!("{more} more")]));
    }
    let names = ["class", "scheme"].into_iter().chain(numbers.iter().map(|(name, ..)| *name)).chain(["why"]);
    let head = Row::new(names.map(|name| Span::styled(name, HEADING))).top_margin(1);
    let widths = [of_name, of_scheme].into_iter().chain(numbers.iter().map(|(_, width, _)| *width));
    let widths = widths.chain([of_why]).map(|width| Constraint::Length(clamp(width)));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

/// Why a class's scheme is what it is, in a few words.
fn why(status: &Status, class: &ClassStatus) -> String {
    let is_it = |choice: &&ChoiceStatus| choice.class == class.name && choice.stream == "bulk";
    match status.choices.iter().find(is_it) {
        None => "policy".to_owned(),
        Some(choice) => {
            let reason = choice.because.as_ref().or(choice.missing.as_ref());
            reason.map_or_else(|| "start".to_owned(), |reason| printable(reason))
        }
    }
}

fn draw_flows(frame: &mut Frame<'_>, area: Rect, view: &View, room: usize) {
    let Some(status) = &view.status else { return };
    let flows = &status.flows;
    let text = format!(
        "{} near, {} far, {} unpaired; {} opened, {} failed",
        flows.near, flows.far, flows.unpaired, flows.opened, flows.failed
    );
    let mut lines = vec![Line::default(), named("flows", text)];
    lines.extend(view.flows.flows.iter().take(room).map(flow));
    frame.render_widget(Paragraph::new(all_fitted(lines, area)), area);
}

fn flow(flow: &Flow) -> Line<'static> {
    let qpn = flow.requester_qpn.map_or_else(|| "?".to_owned(), |qpn| format!("{qpn:#x}"));
    let Flow { side, requester, target, target_qpn, class, state, .. } = flow;
    let state = state.text();
    Line::raw(format!("  {side:<4} {state:<9} {requester} {qpn} > {target} {target_qpn:#x}  {class}"))
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let room = usize::from(area.height).saturating_sub(2);
    let mut lines = vec![Line::default(), named("events", "")];
    let last = view.events.len().saturating_sub(room);
    lines.extend(view.events.iter().skip(last).map(|event| {
        // The date stands in `longhaul events`.
        let time = event.time.split_once('T').map_or(event.time.as_str(), |(_, time)| time);
        let text = format!("  {} {:<13} ", time.trim_end_matches('Z'), event.kind);
        Line::from(vec![Span::styled(printable(&text), DIM), Span::raw(printable(&event.said()))])
    }));
    frame.render_widget(Paragraph::new(all_fitted(lines, area)), area);
}
