//! The admin listener: /metrics for Prometheus, /status, /healthy, /flows, /doctor and /events as
//! JSON, /trace for `longhaul record`, /reload to have the policy file read again, and a page for
//! browsers, over plain HTTP/1.1. A Unix socket beside it, or in its place, answers the same to
//! whoever may open it.
//!
//! All that can be changed through it is which content of a file named in the configuration is in
//! force, and that from the socket and the addresses in `admin.reload_from` only.
//! Requests for a foreign name are refused, and over TCP those without the token if there is one.
//! It answers one request per connection.
//!
//! With a certificate, TCP speaks TLS, and the socket does not.
//!
//! Bounds for each of the two: 32 connections at a time; 5 s per connection, from accepting to the
//! last byte, a TLS handshake included. One more than that takes the place of one that has kept the
//! gateway waiting for its request for 100 ms at least, or for 1 s if it has begun a handshake.
//! Those that have said nothing go first, and of these the oldest.
//! Until there is such a one, or while all are being answered, further ones wait in the kernel's
//! queue.

mod address;
mod admission;
mod choice;
mod doctor;
mod exposition;
mod facts;
mod fetch;
mod flows;
mod health;
mod lanes;
mod members;
mod mistakes;
mod mtu;
mod page;
mod session;
mod spread;
mod status;
mod surroundings;
mod survival;
mod takeover;
mod tls;
mod units;
mod waiting;

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use config::{Policy, Relation};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, warn};

use crate::cells::Cells;
use crate::json;
use crate::logs::printable;
use crate::recorder::Recorder;
use crate::requests::Requests;
use crate::seldom::{A_MINUTE, Seldom};
use crate::telemetry::{Exporter, Snapshot, Telemetry};
use crate::upgrade;

use admission::{Arrival, Client, Refused};
use spread::Window;
use waiting::{Progress, Waiting};

pub use address::{Address, Endpoint, SOCKET, parse_address, site_name};
pub use admission::{Doors, Listener, Token};
pub use choice::{ChoiceStatus, Expected, LinkStatus};
pub use doctor::{DoctorReport, DoctoredFlow, PatienceSource, Verdict};
pub use fetch::{FetchError, ask, fetch, health, reload};
pub use flows::{Flow, FlowFilter, FlowList, State};
pub use health::{Health, PeerHealth, Unhealthy};
pub use lanes::{LaneState, LaneStatus};
pub use members::MembersStatus;
pub use mistakes::LanMistakes;
pub use mtu::{MtuState, MtuStatus};
pub use session::SessionStatus;
pub use spread::Spread;
pub use status::{BackPressure, Buffers, ClassStatus, Flows, PathStatus, PolicyStatus, Rates, Status};
pub use surroundings::{CertificateStatus, SideStatus, Surroundings};
pub use survival::SurvivalStatus;

/// The queries that there are.
const QUERIES: &str = "only ?peer=NAME; for /events and /trace, from=NUMBER; for /doctor, host=IP; for /flows, \
                       host=IP, class=NAME, state=STATE and most=NUMBER\n";
const CONNECTIONS: usize = 32;
const CONNECTION_TIME: Duration = Duration::from_secs(5);
/// Rates are averages over this.
const TICK: Duration = Duration::from_secs(1);
/// Waited after a failed accept, which is usually for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The tasks that answer.
pub type Serving = Vec<JoinHandle<Infallible>>;

/// The state that the listener answers from.
pub struct Admin {
    telemetry: Arc<Telemetry>,
    config: config::Gateway,
    requests: Requests,
    policy: Mutex<View>,
    rates: Mutex<Sample>,
    recorder: Arc<Recorder>,
    token: Option<Token>,
    /// Further peers', each with one of its own.
    others: Vec<Arc<Admin>>,
}

/// The part of it that depends on the policy.
struct View {
    policy: Policy,
    cells: Cells,
    exporter: Exporter,
}

/// The last tick.
struct Sample {
    at: Instant,
    snapshot: Snapshot,
    rates: Rates,
    window: Window,
}

impl Admin {
    /// For a gateway as configured; a reload is asked for through `requests`.
    pub fn new(
        gateway: &config::Gateway,
        policy: &Policy,
        telemetry: Arc<Telemetry>,
        recorder: Arc<Recorder>,
        requests: Requests,
        now: Instant,
    ) -> Self {
        let snapshot = telemetry.snapshot(now);
        let window = Window::new(&snapshot, now);
        Self {
            policy: Mutex::new(View::new(gateway, policy, Cells::new(policy))),
            rates: Mutex::new(Sample { at: now, snapshot, rates: Rates::default(), window }),
            config: gateway.clone(),
            requests,
            telemetry,
            recorder,
            token: None,
            others: Vec::new(),
        }
    }

    /// The same with what answers for further peers. A request names a peer by `?peer=NAME`;
    /// otherwise it is about the first.
    #[must_use]
    pub fn with_others(self, others: Vec<Arc<Self>>) -> Self {
        Self { others, ..self }
    }

    fn peers(&self) -> Vec<String> {
        self.all().map(Self::peer).collect()
    }

    fn peer(&self) -> String {
        self.config.peer.name.clone()
    }

    /// Returns true if none is named, or the policy has it.
    fn has_class(&self, name: Option<&str>) -> bool {
        let classes = &lock(&self.policy).policy;
        name.is_none_or(|name| classes.classes().iter().any(|class| class.name == name))
    }

    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.others.iter().map(Arc::as_ref))
    }

    /// Says that there is no peer of this name, and which there are.
    fn no_peer(&self, name: &str) -> String {
        format!("no peer {}; there is {}\n", printable(name), self.peers().join(", "))
    }

    /// Returns what answers for a peer, the first if none is named; `None` if there is no such.
    fn of_peer(&self, name: Option<&str>) -> Option<&Self> {
        self.all().find(|admin| name.is_none_or(|name| admin.config.peer.name == name))
    }

    /// The same with a token that requests over TCP have to carry, if there is one.
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// The answer to /flows: those that the filter lets pass.
    pub fn flows(&self, filter: &FlowFilter) -> FlowList {
        FlowList { peer: self.peer(), ..FlowList::of(&self.telemetry.flows(), filter) }
    }

    /// The answer to /doctor, about all hosts' flows or one's.
    pub fn doctor(&self, host: Option<IpAddr>, now: Instant) -> DoctorReport {
        let rtt = self.telemetry.snapshot(now).session_rtt_micros;
        let rtt = (rtt > 0).then(|| Duration::from_micros(rtt));
        let resume_for = self.config.peer.resume_for.get();
        let report = DoctorReport::of(&self.telemetry.flows(), host, rtt, resume_for);
        DoctorReport { peer: self.peer(), ..report }
    }

    /// After the policy file was read anew. Series of classes that are gone disappear.
    pub fn set_policy(&self, policy: &Policy, cells: &Cells) {
        *lock(&self.policy) = View::new(&self.config, policy, cells.clone());
    }

    /// The answer to /metrics: Prometheus text, of all peers.
    pub fn metrics(&self, now: Instant) -> String {
        let mut text = self.metrics_of_peer(now);
        for other in &self.others {
            text = exposition::merge(&text, &other.metrics_of_peer(now));
        }
        text
    }

    fn metrics_of_peer(&self, now: Instant) -> String {
        let choices = self.telemetry.choices();
        let view = lock(&self.policy);
        let text = view.exporter.render(&self.telemetry.snapshot(now));
        let text = text
            + &facts::metrics(
                &self.config.site.name,
                &self.config.peer.name,
                self.telemetry.peer_build().as_deref(),
            );
        text + &choice::metric(&self.config.site.name, &self.config.peer.name, &view.policy, &choices)
    }

    /// The answer to /status.
    pub fn status(&self, now: Instant) -> Status {
        let (rates, window) = {
            let sample = lock(&self.rates);
            (sample.rates, sample.window.clone())
        };
        let View { policy, cells, .. } = &*lock(&self.policy);
        let choices = self.telemetry.choices();
        let mut status = Status {
            peers: self.peers(),
            choices: choice::of(policy, &choices).map(|choice| ChoiceStatus::new(choice, now)).collect(),
            ..Status::new(&self.config, policy, cells, &self.telemetry, rates, now)
        };
        let snapshot = self.telemetry.snapshot(now);
        for (class, cell) in status.classes.iter_mut().zip(cells.order()) {
            let Some(numbers) = snapshot.classes.get(*cell) else { continue };
            [class.queueing, class.completion] = window.spreads(*cell, numbers);
        }
        status
    }

    /// The answer to /status about one of the peers, with what only all of them tell.
    fn whole_status(&self, admin: &Self, now: Instant) -> Status {
        let mut status = Status { peers: self.peers(), ..admin.status(now) };
        status.surroundings.members = self.members(admin, now);
        status
    }

    /// Returns the gateways of this site in what goes to the site of one of the peers, if they or
    /// that site's are several.
    fn members(&self, towards: &Self, now: Instant) -> Option<MembersStatus> {
        let is_sibling = |admin: &Self| admin.config.peer.relation == Relation::Sibling;
        if !towards.config.is_member() || is_sibling(towards) {
            return None;
        }
        let takes_part = |admin: &Self| admin.telemetry.snapshot(now).member_takes_part == 2;
        let others = self.all().filter(|admin| is_sibling(admin));
        let others = others.map(|admin| (admin.peer(), takes_part(admin)));
        Some(MembersStatus::new(&self.config.site.name, others, &towards.telemetry.snapshot(now)))
    }

    /// The answer to /healthy, by the peer that is named, or else by all through which something
    /// crosses: through another gateway of this site nothing does.
    fn health(&self, peer: Option<&str>, now: Instant) -> Health {
        let is_sibling = |admin: &&Self| admin.config.peer.relation == Relation::Sibling;
        let is_meant = |admin: &&Self| match peer {
            Some(name) => admin.config.peer.name == name,
            None => !is_sibling(admin),
        };
        let peers = self.all().filter(is_meant);
        let peers = peers.map(|admin| PeerHealth::new(admin.peer(), &admin.telemetry, now)).collect();
        Health::new(&self.telemetry, peers, now)
    }

    /// The answer to /trace: the way from the peer from a place on.
    pub fn trace(&self, from: u64) -> String {
        self.recorder.trace(from, &format!("{} > {}", self.config.peer.name, self.config.site.name))
    }

    /// Takes a sample for the rates; call it about every second. [`Admin::serve`] does.
    pub fn tick(&self, now: Instant) {
        self.others.iter().for_each(|other| other.tick(now));
        let snapshot = self.telemetry.snapshot(now);
        let mut sample = lock(&self.rates);
        let elapsed = now.saturating_duration_since(sample.at);
        if elapsed.is_zero() {
            return;
        }
        let rates = Rates::between(&sample.snapshot, &snapshot, elapsed);
        sample.window.tick(&snapshot, now);
        (sample.at, sample.snapshot, sample.rates) = (now, snapshot, rates);
    }

    /// Begins to answer at `listener` and at the socket, as far as there are, until both are
    /// aborted.
    ///
    /// # Errors
    /// The runtime does not take the socket.
    pub fn start(
        self: &Arc<Self>,
        listener: Option<Listener>,
        socket: Option<StdUnixListener>,
    ) -> io::Result<Serving> {
        let socket = socket.map(UnixListener::from_std).transpose()?.map(Listener::Unix);
        let listeners = listener.into_iter().chain(socket);
        // One alone takes the samples: two would take them at the same time, with nothing between.
        let serve = |(listener, place)| Arc::clone(self).serve_within(listener, CONNECTION_TIME, place == 0);
        Ok(listeners.zip(0..).map(|each| tokio::spawn(serve(each))).collect())
    }

    /// Answers requests until it is dropped.
    pub async fn serve(self: Arc<Self>, listener: impl Into<Listener>) -> Infallible {
        self.serve_within(listener.into(), CONNECTION_TIME, true).await
    }

    /// `samples`: it also takes the samples for the rates.
    async fn serve_within(self: Arc<Self>, listener: Listener, time: Duration, samples: bool) -> Infallible {
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let mut waiting = Waiting::default();
        let mut told = Seldom::new(A_MINUTE);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accept = async {
                // With all places taken, who comes next takes one whose holder has had time to ask
                // and did not.
                while permits.available_permits() == 0 {
                    match waiting.patience(tokio::time::Instant::now()) {
                        Some(Duration::ZERO) => break,
                        Some(rest) => drop(timeout(rest, permits.acquire()).await),
                        None => drop(permits.acquire().await),
                    }
                }
                listener.accept().await
            };
            tokio::select! {
                _ = ticks.tick(), if samples => self.tick(Instant::now()),
                accepted = accept => match accepted {
                    Ok((arrival, from)) => {
                        if permits.available_permits() == 0 {
                            waiting.give_way(tokio::time::Instant::now());
                        }
                        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { continue };
                        let admin = Arc::clone(&self);
                        let progress = Progress::default();
                        let connection = admin.connection(arrival, from, progress.clone());
                        let task = tokio::spawn(async move {
                            match timeout(time, connection).await {
                                Ok(Ok(())) => {}
                                Ok(Err(error)) => debug!(%from, %error, "admin connection failed"),
                                Err(_) => debug!(%from, "admin connection took too long"),
                            }
                            drop(permit);
                        });
                        waiting.add(progress, task.abort_handle(), tokio::time::Instant::now());
                    }
                    Err(error) => {
                        if told.tell(Instant::now()) {
                            warn!(%error, "admin listener cannot accept");
                        }
                        sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        arrival: Arrival,
        client: Client,
        progress: Progress,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Some(stream) = arrival.open(&progress).await? else { return Ok(()) };
        let service = service_fn(|request| {
            progress.asks();
            let admin = Arc::clone(&self);
            async move { Ok::<_, Infallible>(admin.answer(request, client).await) }
        });
        http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await?;
        Ok(())
    }

    /// Judges whether a request may be answered. Who may open the socket needs no token; what comes
    /// by there may come from a browser, over SSH or a proxy.
    fn admit(&self, request: &Request<Incoming>, client: Client) -> Result<(), Refused> {
        if request.headers().get_all(HOST).iter().count() > 1 {
            return Err(Refused::Hosts);
        }
        let hosts = self.config.admin.as_ref().map_or(&[][..], |admin| &admin.hosts);
        if !admission::is_for_us(request.headers(), hosts) {
            return Err(Refused::Host);
        }
        if client == Client::Local {
            return Ok(());
        }
        // The page's own files hold nothing of this gateway.
        let is_open = page::asset(request.uri().path()).is_some();
        if is_open || admission::has_token(request.headers(), self.token.as_ref()) {
            Ok(())
        } else {
            Err(Refused::Token)
        }
    }

    async fn answer(&self, request: Request<Incoming>, client: Client) -> Response<Full<Bytes>> {
        if let Err(refused) = self.admit(&request, client) {
            return refuse(refused);
        }
        let path = request.uri().path();
        if path == "/reload" {
            return self.reload(&request, client).await;
        }
        if path == upgrade::PATH {
            return takeover::answer(&self.requests, request, client);
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return wrong_method("GET, HEAD");
        }
        if let Some(asset) = page::asset(path) {
            return asset;
        }
        let now = Instant::now();
        let bad = |text: &str| reply(StatusCode::BAD_REQUEST, TEXT, text.to_owned());
        let Some(Query { peer, from, filter }) = Query::parse(request.uri().query()) else {
            return bad(QUERIES);
        };
        let peer = peer.as_deref();
        let Some(admin) = self.of_peer(peer) else {
            return bad(&self.no_peer(peer.unwrap_or_default()));
        };
        match path {
            "/metrics" => reply(StatusCode::OK, PROMETHEUS, self.metrics(now)),
            "/status" => json(StatusCode::OK, &self.whole_status(admin, now)),
            "/healthy" => {
                let health = self.health(peer, now);
                let status = match health.is_healthy {
                    true => StatusCode::OK,
                    false => StatusCode::SERVICE_UNAVAILABLE,
                };
                json(status, &health)
            }
            "/flows" if !admin.has_class(filter.class.as_deref()) => {
                bad("no such class: /status lists those of the policy\n")
            }
            "/flows" => json(StatusCode::OK, &admin.flows(&filter)),
            "/doctor" => json(StatusCode::OK, &admin.doctor(filter.host, now)),
            "/events" => json(StatusCode::OK, &admin.telemetry.events().since(from)),
            "/trace" => reply(StatusCode::OK, TEXT, admin.trace(from)),
            _ => {
                let there = "there are /, /metrics, /status, /healthy, /flows, /doctor, /events, /trace and /reload\n";
                reply(StatusCode::NOT_FOUND, TEXT, there.to_owned())
            }
        }
    }

    async fn reload(&self, request: &Request<Incoming>, client: Client) -> Response<Full<Bytes>> {
        if request.method() != Method::POST {
            return wrong_method("POST");
        }
        let allowed = match client {
            Client::Local => true,
            Client::Remote(address) => {
                self.config.admin.as_ref().is_some_and(|admin| admin.may_reload(address))
            }
        };
        if !allowed {
            let text =
                format!("a reload is not taken from {client}, see admin.reload_from in the gateway file\n");
            return reply(StatusCode::FORBIDDEN, TEXT, text);
        }
        // Set by browsers only, on requests that a page makes: no page has any business here.
        if request.headers().contains_key(ORIGIN) {
            return reply(StatusCode::FORBIDDEN, TEXT, "not from a web page\n".to_owned());
        }
        match self.requests.reload().await {
            Some(answer) if answer.adopted => json(StatusCode::OK, &answer),
            Some(answer) => json(StatusCode::UNPROCESSABLE_ENTITY, &answer),
            None => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the gateway is stopping\n".to_owned()),
        }
    }
}

/// The parts of a request's query.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query<'a> {
    /// The peer that it is about.
    peer: Option<Cow<'a, str>>,
    /// The place to begin at, from the beginning if there is none.
    from: u64,
    /// The flows that it is about.
    filter: FlowFilter,
}

impl<'a> Query<'a> {
    /// Keys and values may be percent-encoded (RFC 3986).
    fn parse(query: Option<&'a str>) -> Option<Self> {
        let mut parsed = Self::default();
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (key, value) = pair.split_once('=')?;
            let value = percent_decode_str(value).decode_utf8().ok()?;
            match &*percent_decode_str(key).decode_utf8().ok()? {
                "peer" => parsed.peer = Some(value),
                "from" => parsed.from = value.parse().ok()?,
                key => parsed.filter.take(key, &value)?,
            }
        }
        Some(parsed)
    }
}

impl View {
    fn new(gateway: &config::Gateway, policy: &Policy, cells: Cells) -> Self {
        let exporter = Exporter::new(&gateway.site.name, &gateway.peer.name, &cells);
        Self { policy: policy.clone(), cells, exporter }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

fn reply(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in FOR_BROWSERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Headers that keep other sites' pages out, and this one's to its own files.
const FOR_BROWSERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

fn refuse(refused: Refused) -> Response<Full<Bytes>> {
    match refused {
        Refused::Hosts => {
            reply(StatusCode::BAD_REQUEST, TEXT, "more than one Host header (RFC 9112, 3.2)\n".to_owned())
        }
        Refused::Host => {
            let text = "not for this name: use an address, or enter the name in admin.hosts\n".to_owned();
            reply(StatusCode::MISDIRECTED_REQUEST, TEXT, text)
        }
        Refused::Token => {
            let text = "this needs the token of admin.token: commands take --admin-token FILE, HTTP clients send Authorization: Bearer TOKEN\n".to_owned();
            let mut response = reply(StatusCode::UNAUTHORIZED, TEXT, text);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    match json::pretty(value) {
        Ok(text) => reply(status, JSON, text),
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

fn wrong_method(allowed: &'static str) -> Response<Full<Bytes>> {
    let mut response =
        reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("only {}\n", allowed.replace(", ", " and ")));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// A panicking holder leaves the value whole: it is replaced in one assignment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
