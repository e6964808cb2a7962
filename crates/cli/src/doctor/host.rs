use std::time::{Duration, Instant, SystemTime};

use consort_procstat::grouped;

use super::findings::Findings;

/// One for each client of a server, and some for its members, files and itself.
const DESCRIPTORS_MIN: u64 = 10_000 + 500;

/// Clocks that diverge by less have only been adjusted.
const JUMP_MIN: Duration = Duration::from_millis(200);

pub(super) fn descriptors(findings: &mut Findings) {
    let checked = "open files";
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    let mut fields = line.split_whitespace();
    let (soft, hard) = (fields.next().unwrap_or("unknown"), fields.next().unwrap_or("unknown"));
    match soft.parse::<u64>() {
        Ok(most) if most < DESCRIPTORS_MIN => findings.warning(
            checked,
            format!(
                "a process may have {}, a server with all clients needs {}",
                grouped(most as f64),
                grouped(DESCRIPTORS_MIN as f64)
            ),
            format!("ulimit -n {hard}, or LimitNOFILE in the service's unit"),
        ),
        Ok(most) => findings.good(checked, format!("a process may have {}", grouped(most as f64))),
        Err(_) => findings.good(checked, format!("a process may have {soft}")),
    }
}

pub(super) fn receive_buffers(wanted: usize, findings: &mut Findings) {
    let checked = "receive buffers";
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    match most.trim().parse::<usize>() {
        Ok(most) if most < wanted => findings.warning(
            checked,
            format!(
                "sockets may have {} bytes, and the stack wants {}: bursts are lost and sent again",
                grouped(most as f64),
                grouped(wanted as f64)
            ),
            format!("sysctl -w net.core.rmem_max={wanted}, or let the process have CAP_NET_ADMIN"),
        ),
        Ok(most) => findings.good(checked, format!("sockets may have {} bytes", grouped(most as f64))),
        Err(_) => {}
    }
}

pub(super) struct Clocks {
    wall: SystemTime,
    steady: Instant,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    pub(super) fn compare(&self, findings: &mut Findings) {
        self.compare_with(&Self::now(), findings);
    }

    fn compare_with(&self, later: &Self, findings: &mut Findings) {
        let steady = later.steady.saturating_duration_since(self.steady);
        let apart = match later.wall.duration_since(self.wall) {
            Ok(wall) => wall.abs_diff(steady),
            Err(back) => back.duration() + steady,
        };
        if apart >= JUMP_MIN {
            findings.warning(
                "clock",
                format!("it has jumped by {:.1} s in the {:.1} s of this look", apart.as_secs_f64(), steady.as_secs_f64()),
                "let one service only set the clock (chrony, ntpd or systemd-timesyncd), and let it do so slowly",
            );
        } else {
            findings.good("clock", format!("no jump in {:.1} s", steady.as_secs_f64()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Verdict;
    use super::*;

    #[test]
    fn a_clock_that_jumps_either_way_is_noticed() {
        let begin = Clocks::now();
        let after = |wall: SystemTime| Clocks { wall, steady: begin.steady + Duration::from_secs(2) };
        for (wall, warnings) in [
            (begin.wall + Duration::from_millis(2_050), 0),
            (begin.wall + Duration::from_secs(7), 1),
            (begin.wall - Duration::from_secs(1), 1),
        ] {
            let mut findings = Findings::new(false);
            begin.compare_with(&after(wall), &mut findings);
            assert_eq!(findings.count(Verdict::Warning), warnings);
        }
    }
}
