use protox::prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::error::{QueryError, QueryErrorKind, nearest};
use crate::field_reader;
use crate::limits::PATH_MAX;
use crate::syntax::{From, Path};
use crate::value::Scalar;

/// The queryable types.
pub trait Types {
    /// Returns a type.
    fn message(&self, name: &str) -> Option<MessageDescriptor>;

    /// Returns its id, if any.
    fn id(&self, name: &str) -> Option<u32>;

    /// Returns all names.
    fn names(&self) -> Vec<String>;
}

#[derive(Clone, Debug)]
pub(crate) enum Resolution {
    Entity,
    Field(Field),
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) path: Vec<FieldDescriptor>,
}

impl Field {
    fn last(&self) -> Option<Kind> {
        self.path.last().map(FieldDescriptor::kind)
    }

    /// `None` for messages.
    pub(crate) fn scalar(&self) -> Option<Scalar> {
        field_reader::scalar(&self.last()?)
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        self.last()
    }

    pub(crate) fn is_repeated(&self) -> bool {
        self.path.iter().any(|field| field.is_list() || field.is_map())
    }
}

pub(crate) struct Scope<'q> {
    text: &'q str,
    pub(crate) of: MessageDescriptor,
    alias: Option<&'q str>,
    joined: Vec<(&'q str, Field)>,
}

impl<'q> Scope<'q> {
    pub(crate) fn of(text: &'q str, from: &'q From, types: &dyn Types) -> Result<Self, QueryError> {
        let Some(of) = types.message(&from.name) else {
            let names = types.names();
            let whole = names.iter().find(|name| name.rsplit('.').next() == Some(&from.name)).cloned();
            let nearest = whole.or_else(|| nearest(&from.name, names.iter().map(String::as_str)));
            return Err(QueryError::at(
                text,
                from.at,
                QueryErrorKind::Type { name: from.name.clone(), nearest },
            ));
        };
        let mut scope = Self { text, of, alias: from.alias.as_deref(), joined: Vec::new() };
        for (path, alias) in &from.joins {
            let Resolution::Field(field) = scope.resolve(path)? else {
                return Err(scope.wrong(path.at, QueryErrorKind::Entity(path.text())));
            };
            if let Some(alias) = alias {
                scope.joined.push((alias, field));
            }
        }
        Ok(scope)
    }

    pub(crate) fn wrong(&self, at: usize, wrong: QueryErrorKind) -> QueryError {
        QueryError::at(self.text, at, wrong)
    }

    pub(crate) fn resolve(&self, path: &Path) -> Result<Resolution, QueryError> {
        let (first, rest) = path.names.split_first().ok_or(QueryErrorKind::Path)?;
        let is_alias = self.alias == Some(first);
        if is_alias && rest.is_empty() {
            return Ok(Resolution::Entity);
        }
        let joined = self.joined.iter().find(|(alias, _)| *alias == first).map(|(_, field)| field.clone());
        let (mut field, names) = match joined {
            _ if is_alias => (Field { name: String::new(), path: Vec::new() }, rest),
            Some(field) => (field, rest),
            None => (Field { name: String::new(), path: Vec::new() }, &path.names[..]),
        };
        for name in names {
            if field.path.len() == PATH_MAX {
                return Err(self.wrong(path.at, QueryErrorKind::Path));
            }
            let inner = match field.last() {
                None => self.of.clone(),
                Some(Kind::Message(inner)) => inner,
                Some(_) => {
                    let (of, name) = (field.name.clone(), name.clone());
                    return Err(self.wrong(path.at, QueryErrorKind::Field { of, name, nearest: None }));
                }
            };
            let Some(found) = inner.get_field_by_name(name) else {
                return Err(self.wrong(path.at, self.no_field(&field, &inner, name, names.len())));
            };
            if !field.name.is_empty() {
                field.name.push('.');
            }
            field.name.push_str(name);
            field.path.push(found);
        }
        Ok(Resolution::Field(field))
    }

    fn no_field(&self, field: &Field, of: &MessageDescriptor, name: &str, names: usize) -> QueryErrorKind {
        let fields: Vec<FieldDescriptor> = of.fields().collect();
        let fields = fields.iter().map(FieldDescriptor::name);
        let name = name.to_owned();
        if !field.path.is_empty() || names == 1 {
            let nearest = nearest(&name, fields);
            return QueryErrorKind::Field { of: of.full_name().to_owned(), name, nearest };
        }
        let aliases = self.alias.into_iter().chain(self.joined.iter().map(|(alias, _)| *alias));
        QueryErrorKind::Alias { nearest: nearest(&name, aliases.chain(fields)), name }
    }
}
