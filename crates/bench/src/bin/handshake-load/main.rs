//! The load of unauthenticated clients on a server in another process: many at once, or with wrong passwords.
//!
//! The program prints `ready` when it has begun, goes on until its input ends, and prints its counts as one
//! line of JSON.

mod bad_passwords;
mod connections;

use std::io::{Write, stdin};
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::net::TcpStream;
use tokio::sync::watch;

use self::bad_passwords::BadPasswords;
use self::connections::Connections;

/// Attacks a server until the input ends.
#[derive(Parser)]
struct Arguments {
    /// The server.
    #[arg(long)]
    server: SocketAddr,
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    /// Opens many unauthenticated connections at once, and holds them.
    Connections(Connections),
    /// Tries passwords, all wrong.
    BadPasswords(BadPasswords),
}

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
    let counts = match arguments.load {
        Load::Connections(connections) => connections.run(arguments.server, ending).await?,
        Load::BadPasswords(bad_passwords) => bad_passwords.run(arguments.server, ending).await?,
    };
    println!("{counts}");
    Ok(())
}

fn ready() -> anyhow::Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "ready")?;
    Ok(output.flush()?)
}

/// The connection is reset on drop, so that its port is free again at once.
async fn connect(server: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(stream)
}
