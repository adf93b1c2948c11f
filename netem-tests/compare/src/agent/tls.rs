//! Messages over TLS 1.3 on the kernel's TCP, all on one connection.

use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CipherSuite, ClientConfig, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::{Error, certificate, runtime, tcp};
use crate::job::{HEADER, Header, Job, Tally, say, wait_for_release};

pub(super) fn receive(listen: SocketAddr, congestion: &str) -> Result<(), Error> {
    let (certificate, key) = certificate::generate()?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener: StdListener = tcp::listener(listen, Some(congestion))?;
    listener.set_nonblocking(true)?;
    let runtime = runtime()?;
    certificate::publish(&certificate)?;
    say("ready")?;
    runtime.spawn(async move {
        let listener = TcpListener::from_std(listener)?;
        while let Ok((stream, _)) = listener.accept().await {
            // A connection that breaks shows at the sender, as messages that are never confirmed.
            tokio::spawn(serve(acceptor.clone(), stream));
        }
        Ok::<_, std::io::Error>(())
    });
    Ok(wait_for_release()?)
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let mut body = Vec::new();
    loop {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header).await?;
        let header = Header::parse(header);
        body.resize(usize::try_from(header.length)?, 0);
        stream.read_exact(&mut body).await?;
        stream.write_all(&header.confirmation(&body).to_le_bytes()).await?;
        stream.flush().await?;
    }
}

pub(super) fn send(to: SocketAddr, congestion: &str, job: Job) -> Result<(), Error> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(certificate::trusted()?)
        .with_no_client_auth();
    let stream: StdStream = tcp::connect(to, Some(congestion))?;
    stream.set_nonblocking(true)?;
    let runtime = runtime()?;
    let tally = runtime.block_on(async {
        let connector = TlsConnector::from(Arc::new(config));
        let stream = TcpStream::from_std(stream)?;
        let stream = connector.connect(ServerName::try_from(certificate::NAME)?, stream).await?;
        let (reader, writer) = split(TlsStream::from(stream));
        let tally = Arc::new(Tally::begin(job)?);
        let (posted, to_write) = unbounded_channel();
        for _ in 0..job.outstanding {
            post(&tally, &posted);
        }
        tokio::spawn(write(writer, to_write, job));
        tokio::spawn(read(reader, Arc::clone(&tally), posted));
        Ok::<_, Error>(tally)
    })?;
    tally.finish()?;
    Ok(wait_for_release()?)
}

/// The cipher suite that Longhaul and QUIC take where the processor has AES.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

fn post(tally: &Tally, posted: &UnboundedSender<u64>) {
    if let Some(number) = tally.post() {
        // The writer is gone with its connection.
        let _ = posted.send(number);
    }
}

async fn write(
    mut stream: WriteHalf<TlsStream<TcpStream>>,
    mut posted: UnboundedReceiver<u64>,
    job: Job,
) -> Result<(), Error> {
    let mut message = vec![0; HEADER + usize::try_from(job.size)?];
    while let Some(number) = posted.recv().await {
        let header = Header::new(&job, number);
        let (head, body) = message.split_at_mut(HEADER);
        head.copy_from_slice(&header.to_bytes());
        header.fill(body);
        stream.write_all(&message).await?;
        stream.flush().await?;
    }
    Ok(())
}

async fn read(
    mut stream: ReadHalf<TlsStream<TcpStream>>,
    tally: Arc<Tally>,
    posted: UnboundedSender<u64>,
) -> Result<(), Error> {
    loop {
        let mut number = [0; 8];
        stream.read_exact(&mut number).await?;
        tally.confirm(u64::from_le_bytes(number));
        post(&tally, &posted);
    }
}
