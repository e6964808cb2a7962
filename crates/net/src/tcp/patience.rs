//! How long a connection may be silent after a link that was cut has healed.
//!
//! TCP waits twice as long after each attempt: a cut of 15 s is over for it after 25 s. A member waits for one key so long,
//! and so do all who wait for that member. Attempts once a second cost a packet each.

use std::io;
use std::time::Duration;

use socket2::SockRef;

/// The most between two attempts to send what is not acknowledged; less, the kernel does not take.
const ATTEMPTS_EVERY: Duration = Duration::from_secs(1);

/// How long attempts are made before the connection is given up. The system's own limit counts attempts, which are more
/// now: this is as long as fifteen of them took. Failure detection is much sooner.
const GIVE_UP_AFTER: Duration = Duration::from_secs(924);

/// Sets both. A kernel before Linux 6.15 does not know the first, and then nothing is changed.
pub(super) fn apply(socket: &SockRef<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if option::set_attempts_every(socket, ATTEMPTS_EVERY)? {
        socket.set_tcp_user_timeout(Some(GIVE_UP_AFTER))?;
    }
    Ok(())
}

/// The option, which no crate has yet. Its block states why it is sound.
#[cfg(target_os = "linux")]
mod option {
    #![allow(unsafe_code)]

    use std::io;
    use std::os::fd::{AsRawFd, RawFd};
    use std::time::Duration;

    use socket2::SockRef;

    /// `TCP_RTO_MAX_MS` of `linux/tcp.h`.
    const TCP_RTO_MAX_MS: libc::c_int = 44;

    /// False if the kernel does not know it.
    pub(super) fn set_attempts_every(socket: &SockRef<'_>, most: Duration) -> io::Result<bool> {
        let ms = libc::c_int::try_from(most.as_millis()).unwrap_or(libc::c_int::MAX);
        let fd: RawFd = socket.as_raw_fd();
        // SAFETY: the descriptor is open as long as `socket` is borrowed, and the kernel reads the four bytes of `ms`, of
        // which it is told the length, within the call.
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
        apply(&socket).unwrap();
        #[cfg(target_os = "linux")]
        {
            let is_known = option::set_attempts_every(&socket, ATTEMPTS_EVERY).unwrap();
            let wanted = is_known.then_some(GIVE_UP_AFTER);
            assert_eq!(socket.tcp_user_timeout().unwrap(), wanted);
        }
    }
}
