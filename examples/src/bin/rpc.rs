//! Remote procedure calls: one member calls one other or all, and gets a result or an error per member.
//!
//! `cargo run -p consort-examples --bin rpc`

use std::time::Duration;

use consort::channel::rpc::{RequestOptions, RpcDispatcher};
use consort::channel::{Message, Payload};
use consort_examples::{Failure, in_process};

/// Doubles a number that fits; the caller gets the text of an error.
fn double(request: &Message) -> Result<Payload, String> {
    match request.payload {
        Payload::Long(number) => number.checked_mul(2).map(Payload::Long).ok_or("too large".to_owned()),
        _ => Err("not a number".to_owned()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut members = Vec::new();
    for name in ["A", "B", "C"] {
        members.push(RpcDispatcher::connect(in_process(name)?, "rpc", double).await?);
    }
    let caller = &members[0];
    let mut view = caller.channel().watch_view();
    view.wait_for(|view| view.as_ref().is_some_and(|view| view.len() == 3)).await?;

    let options = RequestOptions::all(Duration::from_secs(10));
    let b = caller.channel().member_named("B").ok_or("B is no member")?;
    println!("B: {:?}", caller.call(&b, Payload::Long(21), &options).await?);
    if let Err(error) = caller.call(&b, Payload::Long(i64::MAX), &options).await {
        println!("B: {error}");
    }
    let mut responses = caller.call_all(Payload::Long(4), &options).await?;
    responses.sort_by_key(|response| caller.channel().name_of(&response.member));
    for response in responses {
        println!("{}: {:?}", caller.channel().name_of(&response.member), response.result?);
    }
    for member in members {
        member.channel().clone().close().await;
    }
    Ok(())
}
