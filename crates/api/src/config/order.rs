//! The order of keys: JSON schemas sort them alphabetically, people read them in the types' order.

use std::fmt;

use schemars::Schema;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Adds the names of the fields of `T`, in order, to its schema.
pub(super) fn in_order<'de, T: Deserialize<'de>>(schema: &mut Schema) {
    let Err(Fields(names)) = T::deserialize(Fields(&[])).map(drop) else { return };
    schema.insert("x-order".into(), names.into());
}

/// A deserializer that returns the field names which a type requests, as an error.
#[derive(Debug)]
struct Fields(&'static [&'static str]);

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Fields {}

impl de::Error for Fields {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for Fields {
    type Error = Self;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self> {
        Err(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(self, _: &str, fields: &'static [&'static str], _: V) -> Result<V::Value, Self> {
        Err(Self(fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}
