//! Limits of TCP's retransmissions, for links that fail and heal.
//!
//! TCP doubles the time between attempts: a cut of 15 s ends for it after 25 s, and all that wait for the member wait that long.
//! Attempts once a second cost a packet each.

use std::io;
use std::time::Duration;

use socket2::SockRef;

/// The kernel's minimum for this limit.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);

/// The time of TCP's fifteen attempts, because its own limit counts attempts, which are more now. Failure detection is much
/// faster.
const GIVE_UP_AFTER: Duration = Duration::from_secs(924);

/// A kernel before Linux 6.15 lacks the first limit; then neither is set.
pub(super) fn set_retransmit_limits(socket: &SockRef<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if option::set_attempt_interval(socket, ATTEMPT_INTERVAL)? {
        socket.set_tcp_user_timeout(Some(GIVE_UP_AFTER))?;
    }
    Ok(())
}

/// No crate has the option yet.
#[cfg(target_os = "linux")]
mod option {
    #![allow(unsafe_code)]

    use std::io;
    use std::os::fd::{AsRawFd, RawFd};
    use std::time::Duration;

    use socket2::SockRef;

    /// The constant is from `linux/tcp.h`.
    const TCP_RTO_MAX_MS: libc::c_int = 44;

    pub(super) fn set_attempt_interval(socket: &SockRef<'_>, most: Duration) -> io::Result<bool> {
        let ms = libc::c_int::try_from(most.as_millis()).unwrap_or(libc::c_int::MAX);
        let fd: RawFd = socket.as_raw_fd();
        // SAFETY: the descriptor is open while `socket` is borrowed, and the kernel reads the four bytes of `ms`,
        // whose length it gets, within the call.
        let result = unsafe {
            libc::setsockopt(
                fd,
                libc::IPPROTO_TCP,
                TCP_RTO_MAX_MS,
                (&raw const ms).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if result == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOPROTOOPT) { Ok(false) } else { Err(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_takes_both_or_neither() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = SockRef::from(&stream);
        set_retransmit_limits(&socket).unwrap();
        #[cfg(target_os = "linux")]
        {
            let is_known = option::set_attempt_interval(&socket, ATTEMPT_INTERVAL).unwrap();
            let wanted = is_known.then_some(GIVE_UP_AFTER);
            assert_eq!(socket.tcp_user_timeout().unwrap(), wanted);
        }
    }
}
