//! The load of unauthenticated clients on a server: many at once, or with wrong passwords. The server is another process.
//!
//! The program prints `ready` when it has begun, goes on until its input ends, and then prints its counts as one line of
//! JSON.

mod crowd;
mod guesses;

use std::io::{Write, stdin};
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::net::TcpStream;
use tokio::sync::watch;

use self::crowd::Crowd;
use self::guesses::Guesses;

/// Attacks a server until the input ends.
#[derive(Parser)]
struct Arguments {
    /// The server.
    #[arg(long)]
    server: SocketAddr,
    #[command(subcommand)]
    how: How,
}

#[derive(Subcommand)]
enum How {
    /// Opens many unauthenticated connections at once, and holds them.
    Crowd(Crowd),
    /// Tries passwords, all wrong.
    Guesses(Guesses),
}

/// Becomes true when the input ends.
type Ending = watch::Receiver<bool>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (ends, ending) = watch::channel(false);
    std::thread::spawn(move || {
        // Any input is ignored until its end. Without a receiver the program has ended.
        let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
        let _ = ends.send(true);
    });
    let said = match arguments.how {
        How::Crowd(crowd) => crowd.come(arguments.server, ending).await?,
        How::Guesses(guesses) => guesses.make(arguments.server, ending).await?,
    };
    println!("{said}");
    Ok(())
}

/// Prints that the load has begun.
fn ready() -> anyhow::Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "ready")?;
    Ok(output.flush()?)
}

/// Opens a connection that is reset when it is dropped, so that its port is free again at once.
async fn connect(server: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(stream)
}
