//! Responses to queries in Infinispan's JSON.

use bytes::Bytes;
use consort_protostream::QueryResponse;
use consort_query::Value;
use serde_json::Value as Json;

use crate::limits::ENTITY_JSON_MAX;
use crate::media::{Format, Types};
use crate::reply::Refusal;

pub(super) fn answer(
    response: &QueryResponse,
    names: &[String],
    is_entity: impl Fn(usize) -> bool,
    types: &Types,
) -> Result<String, Refusal> {
    let mut text =
        format!(r#"{{"hit_count":{},"hit_count_exact":{},"hits":["#, response.count, response.is_exact);
    for (at, row) in response.rows.iter().enumerate() {
        if text.len() > ENTITY_JSON_MAX {
            return Err(Refusal::new(format!("the result is more than {ENTITY_JSON_MAX} bytes of JSON")));
        }
        text.push_str(if at == 0 { r#"{"hit":"# } else { r#",{"hit":"# });
        if response.columns == 0 {
            row.iter()
                .try_for_each(|entity| entity_json(entity, types).map(|entity| text.push_str(&entity)))?;
        } else {
            text.push('{');
            for (column, (name, value)) in names.iter().zip(row).enumerate() {
                if column > 0 {
                    text.push(',');
                }
                text.push_str(&Json::from(name.as_str()).to_string());
                text.push(':');
                let value = if is_entity(column) { entity_json(value, types)? } else { value_json(value) };
                text.push_str(&value);
            }
            text.push('}');
        }
        text.push('}');
    }
    text.push_str("]}");
    Ok(text)
}

fn entity_json(entity: &Bytes, types: &Types) -> Result<String, Refusal> {
    let json = Format::Protostream.convert(entity.clone(), &Format::JSON, types)?;
    Ok(String::from_utf8_lossy(&json).into_owned())
}

fn value_json(wrapped: &Bytes) -> String {
    let json = match Value::read(wrapped.clone()) {
        None => Json::Null,
        Some(Value::Int(number)) => Json::from(number),
        Some(Value::Long(number)) => Json::from(number),
        Some(Value::Float(number)) => number.to_string().parse().map_or(Json::Null, Json::Number),
        Some(Value::Double(number)) => Json::from(number),
        Some(Value::Bool(is)) => Json::from(is),
        Some(Value::Text(text)) => Json::from(text.into_owned()),
        // As signed bytes, like Java.
        Some(Value::Bytes(bytes)) => bytes.iter().map(|byte| byte.cast_signed()).collect(),
    };
    json.to_string()
}
