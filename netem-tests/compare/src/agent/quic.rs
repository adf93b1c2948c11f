//! Messages over QUIC: a bidirectional stream for each, on one connection.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, MtuDiscoveryConfig, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustix::net::sockopt;

use super::{Error, certificate, runtime};
use crate::job::{HEADER, Header, Job, Tally, say, wait_for_release};

/// Windows of streams and connection: many times any cell's rate x round-trip time.
const WINDOW: u32 = 256 << 20;
const STREAMS: u32 = 1024;
/// Above this, ten segments exceed 64 KiB, which `sendmsg` refuses and quinn takes for loss.
const MOST_MTU: u16 = 6500;
const SOCKET_BUFFER: usize = 32 << 20;
/// IPv4 and UDP.
const HEADERS: u16 = 28;

pub(super) fn receive(listen: SocketAddr, congestion: &str, mtu: u16) -> Result<(), Error> {
    let (certificate, key) = certificate::generate()?;
    let mut config = ServerConfig::with_single_cert(vec![certificate.clone()], key)?;
    config.transport_config(Arc::new(transport(congestion, mtu)?));
    let runtime = runtime()?;
    let endpoint = {
        let _guard = runtime.enter();
        endpoint(listen, Some(config))?
    };
    certificate::publish(&certificate)?;
    say("ready")?;
    runtime.spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            if let Ok(connection) = incoming.await {
                tokio::spawn(serve(connection));
            }
        }
    });
    Ok(wait_for_release()?)
}

async fn serve(connection: Connection) {
    while let Ok((send, receive)) = connection.accept_bi().await {
        // A stream that breaks shows at the sender, as a message that is never confirmed.
        tokio::spawn(answer(send, receive));
    }
}

async fn answer(mut send: SendStream, mut receive: RecvStream) -> Result<(), Error> {
    let mut header = [0; HEADER];
    receive.read_exact(&mut header).await?;
    let header = Header::parse(header);
    let mut body = vec![0; usize::try_from(header.length)?];
    receive.read_exact(&mut body).await?;
    send.write_all(&header.confirmation(&body).to_le_bytes()).await?;
    Ok(send.finish()?)
}

pub(super) fn send(to: SocketAddr, congestion: &str, mtu: u16, job: Job) -> Result<(), Error> {
    let mut config = ClientConfig::with_root_certificates(certificate::trusted()?)?;
    config.transport_config(Arc::new(transport(congestion, mtu)?));
    let runtime = runtime()?;
    let tally = runtime.block_on(async {
        let mut endpoint = endpoint(SocketAddr::new([0, 0, 0, 0].into(), 0), None)?;
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(to, certificate::NAME)?.await?;
        let tally = Arc::new(Tally::begin(job)?);
        for _ in 0..job.outstanding {
            tokio::spawn(post(connection.clone(), Arc::clone(&tally), job));
        }
        Ok::<_, Error>(tally)
    })?;
    tally.finish()?;
    Ok(wait_for_release()?)
}

/// Keeps one message outstanding.
async fn post(connection: Connection, tally: Arc<Tally>, job: Job) -> Result<(), Error> {
    let mut body = vec![0; usize::try_from(job.size)?];
    while let Some(number) = tally.post() {
        let header = Header::new(&job, number);
        header.fill(&mut body);
        let (mut send, mut receive) = connection.open_bi().await?;
        send.write_all(&header.to_bytes()).await?;
        send.write_all(&body).await?;
        send.finish()?;
        let mut number = [0; 8];
        receive.read_exact(&mut number).await?;
        tally.confirm(u64::from_le_bytes(number));
    }
    Ok(())
}

fn endpoint(address: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint, Error> {
    let socket = UdpSocket::bind(address)?;
    // Past the system's limit where privileges allow it.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER);
    let _ = sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BUFFER);
    Ok(Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?)
}

fn transport(congestion: &str, mtu: u16) -> Result<TransportConfig, Error> {
    let mut config = TransportConfig::default();
    match congestion {
        "cubic" => config.congestion_controller_factory(Arc::new(CubicConfig::default())),
        "bbr" => config.congestion_controller_factory(Arc::new(BbrConfig::default())),
        other => return Err(format!("`{other}` is neither cubic nor bbr").into()),
    };
    let mtu = mtu.saturating_sub(HEADERS).min(MOST_MTU);
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(mtu);
    config
        .initial_mtu(mtu)
        .mtu_discovery_config(Some(discovery))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_idle_timeout(Some(Duration::from_secs(60).try_into()?));
    Ok(config)
}
