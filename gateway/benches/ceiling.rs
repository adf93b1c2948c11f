//! What sealed UDP over loopback can do here, by datagram length: `cargo bench -p gateway --bench ceiling [SECONDS]`.

fn main() -> std::io::Result<()> {
    // Cargo itself passes `--bench`.
    let seconds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(2.0);
    for segment in [256, 1448, 4200, 8900] {
        let rate = gateway::wan::ceiling(seconds, segment)?;
        println!("{segment:5} B  {rate:5.1} Gbit/s");
    }
    Ok(())
}
