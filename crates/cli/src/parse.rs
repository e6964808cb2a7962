//! `consort parse`: captures of JGroups traffic, readable.

mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use consort_capture as capture;

/// Reads a pcap file, or the hex vectors of the facts, and prints every JGroups message in it.
#[derive(Args)]
#[command(after_help = "Example:\n  \
    tcpdump -i lo -w jgroups.pcap 'tcp portrange 7800-7810 or udp port 45588'\n  \
    consort parse jgroups.pcap\n\n\
    A line has the time of the packet in UTC, source and destination, the members,\n\
    the length, the flags and the headers.\n\
    The exit code is 1 if there is no JGroups message.")]
pub(crate) struct Parse {
    /// A capture (pcap, not pcapng), or a text with a packet per line in hex digits.
    file: PathBuf,
}

/// The most characters of an invalid line that an error repeats.
const SHOWN_MAX: usize = 60;

/// Hours, minutes, seconds and microseconds in UTC.
fn time_of_day(time: Duration) -> String {
    let seconds = time.as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}.{:06}", seconds / 3_600, seconds / 60 % 60, seconds % 60, time.subsec_micros())
}

impl Parse {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let bytes = std::fs::read(&self.file).with_context(|| self.file.display().to_string())?;
        let mut shown = show::Shown::default();
        if capture::is_pcap(&bytes) {
            let mut streams = capture::Streams::default();
            for packet in capture::packets(&bytes) {
                let packet = packet.with_context(|| self.file.display().to_string())?;
                for payload in streams.payloads(&packet) {
                    let place = format!("{}  {}", time_of_day(packet.time), payload.connection);
                    shown.payload(&place, payload.kind, &payload.bytes);
                }
            }
        } else {
            let text = String::from_utf8(bytes)
                .with_context(|| format!("{}: neither a capture (pcap) nor a text", self.file.display()))?;
            for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
                let (name, hex) = line.rsplit_once(' ').unwrap_or(("", line));
                let packet = capture::unhex(hex).with_context(|| {
                    let shown: String = line.chars().take(SHOWN_MAX).collect();
                    format!(
                        "{}: neither a capture (pcap) nor a packet in hex digits: `{shown}`",
                        self.file.display()
                    )
                })?;
                shown.payload(name, capture::Kind::Packet, &packet);
            }
        }
        eprintln!("{} messages, {} packets that are something else", shown.messages, shown.others);
        Ok(if shown.messages > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_packets_are_shown_in_utc_with_microseconds() {
        let time = Duration::new(1_764_431_469, 70_123_456);
        assert_eq!(time_of_day(time), "15:51:09.070123");
        assert_eq!(time_of_day(Duration::ZERO), "00:00:00.000000");
    }
}
