//! The compiler: types and parameters to a plan.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::condition::{Condition, Predicate, Test};
use crate::error::{QueryError, QueryErrorKind};
use crate::field_reader::FieldReader;
use crate::grouping::{AggregateColumn, Grouping};
use crate::like::Like;
use crate::limits::{COLUMNS_MAX, CONSTANTS_BYTES_MAX, JOINS_MAX, PARAMETERS_MAX, PATTERNS_MAX};
use crate::literal::FieldContext;
use crate::plan::{Column, Plan};
use crate::scope::{Field, Resolution, Scope, Types};
use crate::syntax::{self, Aggregate, Comparison, Expr, Function, Literal, LiteralSource, Statement, Term};
use crate::value::{Scalar, Value};
use consort_protostream::Wrapped;

type Result<T> = std::result::Result<T, QueryError>;

/// A compiled query.
#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    /// The plan for owners.
    pub plan: Plan,
    /// The kind of request to owners.
    pub source: Source,
    /// Columns of the result; empty for entities.
    pub names: Vec<String>,
    pub(crate) answer: Answer,
}

/// The kind of request to owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// No request: nothing can match.
    Nothing,
    /// A row of each entity ([`Plan::row`]).
    Rows,
    /// Reduced rows ([`Plan::reduce`]).
    Parts,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Answer {
    /// The first `selected` columns are the result, the others the sort keys, each with its direction.
    Rows {
        selected: usize,
        order: Vec<bool>,
    },
    Groups(Grouping),
}

/// The slot of the values and the context of literals; `None` for messages.
struct Operand {
    slot: usize,
    name: String,
    context: Option<FieldContext>,
}

impl Statement {
    /// Compiles the query. The error is an unknown name, a value of the wrong type, or an unsupported feature.
    pub fn compile(&self, types: &dyn Types, parameters: &BTreeMap<String, Wrapped>) -> Result<Compiled> {
        if parameters.len() > PARAMETERS_MAX {
            return Err(QueryErrorKind::Unsupported("a query can have at most 10,000 parameters").into());
        }
        if self.from.joins.len() > JOINS_MAX {
            return Err(QueryErrorKind::Joins.into());
        }
        let scope = Scope::of(&self.text, &self.from, types)?;
        let mut compiler = Compiler {
            scope,
            parameters,
            reader: FieldReader::default(),
            slots: 0,
            columns: Vec::new(),
            patterns: Cell::new(0),
            constants_bytes: Cell::new(0),
        };
        let condition = match &self.filter {
            Some(filter) => compiler.condition(filter, false, &mut |compiler, term| compiler.side(term))?,
            None => Condition::Constant(true),
        };
        let is_aggregate = |term: &Term| matches!(term, Term::Aggregate(_));
        let is_grouped = self.is_distinct
            || !self.group.is_empty()
            || self.select.iter().any(is_aggregate)
            || self.order.iter().any(|order| is_aggregate(&order.by));
        let (names, answer) = if is_grouped { compiler.groups(self)? } else { compiler.rows(self)? };
        let finds_nothing = condition == Condition::Constant(false)
            || matches!(&answer, Answer::Groups(grouping) if grouping.having == Condition::Constant(false));
        let source = match &answer {
            _ if finds_nothing => Source::Nothing,
            Answer::Rows { .. } => Source::Rows,
            Answer::Groups(_) => Source::Parts,
        };
        let Compiler { scope, reader, slots, columns, .. } = compiler;
        let type_name = scope.of.full_name().to_owned();
        let type_id = types.id(&type_name);
        Ok(Compiled {
            plan: Plan { type_name, type_id, slots, reader, condition, columns },
            source,
            names,
            answer,
        })
    }
}

struct Compiler<'q> {
    scope: Scope<'q>,
    parameters: &'q BTreeMap<String, Wrapped>,
    reader: FieldReader,
    slots: usize,
    columns: Vec<Column>,
    patterns: Cell<usize>,
    constants_bytes: Cell<usize>,
}

type OperandFn<'f, 'q> = dyn FnMut(&mut Compiler<'q>, &Term) -> Result<Operand> + 'f;

impl<'q> Compiler<'q> {
    fn wrong<T>(&self, at: usize, wrong: QueryErrorKind) -> Result<T> {
        Err(self.scope.wrong(at, wrong))
    }

    fn slot(&mut self, field: &Field) -> Result<usize> {
        let slot = self.reader.add(&field.path, self.slots).ok_or(QueryErrorKind::Path)?;
        self.slots = self.slots.max(slot + 1);
        if self.slots > COLUMNS_MAX { Err(QueryErrorKind::Columns.into()) } else { Ok(slot) }
    }

    /// Before it is copied.
    fn note_constant(&self, at: usize, bytes: usize) -> Result<()> {
        let all = self.constants_bytes.get().saturating_add(bytes);
        self.constants_bytes.set(all);
        if all > CONSTANTS_BYTES_MAX { self.wrong(at, QueryErrorKind::Constants) } else { Ok(()) }
    }

    fn constant_len(&self, literal: &Literal) -> usize {
        match &literal.of {
            LiteralSource::Text(text) => text.len(),
            LiteralSource::Parameter(name) => match self.parameters.get(name) {
                Some(Wrapped::Text(text)) => text.len(),
                Some(Wrapped::Bytes(bytes)) => bytes.len(),
                _ => 0,
            },
        }
    }

    fn column(&mut self, column: Column) -> Result<usize> {
        if let Some(at) = self.columns.iter().position(|there| *there == column) {
            return Ok(at);
        }
        self.new_column(column)
    }

    fn new_column(&mut self, column: Column) -> Result<usize> {
        if self.columns.len() == COLUMNS_MAX {
            return Err(QueryErrorKind::Columns.into());
        }
        self.columns.push(column);
        Ok(self.columns.len() - 1)
    }

    fn field(&self, path: &syntax::Path) -> Result<Field> {
        match self.scope.resolve(path)? {
            Resolution::Field(field) => Ok(field),
            Resolution::Entity => self.wrong(path.at, QueryErrorKind::Entity(path.text())),
        }
    }

    fn side(&mut self, term: &Term) -> Result<Operand> {
        let path = match term {
            Term::Path(path) => path,
            Term::Aggregate(Aggregate { at, function, .. }) => {
                let wrong =
                    QueryErrorKind::Aggregate { number: 15, clause: "WHERE", function: function.name() };
                return self.wrong(*at, wrong);
            }
            Term::Version(path) | Term::Score(path) => {
                return self
                    .wrong(path.at, QueryErrorKind::Unsupported("versions and scores can only be selected"));
            }
        };
        let field = self.field(path)?;
        let slot = self.slot(&field)?;
        let context =
            field.scalar().map(|scalar| FieldContext::of(field.name.clone(), scalar, field.kind().as_ref()));
        Ok(Operand { slot, name: field.name, context })
    }

    fn condition(
        &mut self,
        expr: &Expr,
        is_negated: bool,
        sides: &mut OperandFn<'_, 'q>,
    ) -> Result<Condition> {
        Ok(match expr {
            Expr::Constant(is) => Condition::Constant(*is != is_negated),
            Expr::Not(expr) => self.condition(expr, !is_negated, sides)?,
            Expr::All(all) | Expr::Any(all) => {
                let is_all = matches!(expr, Expr::All(_)) != is_negated;
                let all = all.iter().map(|one| self.condition(one, is_negated, sides));
                let all = all.collect::<Result<Vec<_>>>()?;
                if is_all { Condition::all(all) } else { Condition::any(all) }
            }
            Expr::Test(term, test) => {
                let side = sides(self, term)?;
                self.test(term, test, &side, is_negated)?
            }
        })
    }

    fn test(&self, term: &Term, test: &syntax::Test, side: &Operand, is_negated: bool) -> Result<Condition> {
        let slot = side.slot;
        let tested = |of, is_negated| Condition::Test(Box::new(Test { slot, is_negated, of }));
        if *test == syntax::Test::Null {
            return Ok(tested(Predicate::Null, is_negated));
        }
        let Some(context) = &side.context else {
            return self.wrong(term.at(), QueryErrorKind::Embedded(side.name.clone()));
        };
        let value = |literal: &Literal| {
            self.note_constant(literal.at, self.constant_len(literal))?;
            let value = context.value(&literal.of, self.parameters);
            value.map_err(|wrong| self.scope.wrong(literal.at, wrong))
        };
        // `<` is the negation of `>=`, but neither holds without a value.
        let compared = |comparison, value: Value<'static>| match (comparison, is_negated) {
            (Comparison::Equal, _) => tested(Predicate::Compare(comparison, value), is_negated),
            (comparison, false) => tested(Predicate::Compare(comparison, value), false),
            (comparison, true) => tested(Predicate::Compare(opposite(comparison), value), false),
        };
        Ok(match test {
            syntax::Test::Null => tested(Predicate::Null, is_negated),
            syntax::Test::Compare(comparison, literal) => {
                if context.scalar == Scalar::Bytes && *comparison != Comparison::Equal {
                    return self.wrong(term.at(), unordered(&side.name, context.scalar));
                }
                compared(*comparison, value(literal)?)
            }
            syntax::Test::Between(low, high) => {
                if context.scalar == Scalar::Bytes {
                    return self.wrong(term.at(), unordered(&side.name, context.scalar));
                }
                let both = vec![
                    compared(Comparison::GreaterOrEqual, value(low)?),
                    compared(Comparison::LessOrEqual, value(high)?),
                ];
                if is_negated { Condition::any(both) } else { Condition::all(both) }
            }
            syntax::Test::In(all) => {
                let each = all.iter().map(|literal| Ok(compared(Comparison::Equal, value(literal)?)));
                let each = each.collect::<Result<Vec<_>>>()?;
                if is_negated { Condition::all(each) } else { Condition::any(each) }
            }
            syntax::Test::Like(literal, escape) => {
                self.patterns.set(self.patterns.get() + 1);
                if self.patterns.get() > PATTERNS_MAX {
                    return self.wrong(literal.at, QueryErrorKind::Patterns);
                }
                self.note_constant(literal.at, self.constant_len(literal))?;
                let pattern = self.pattern(literal, &side.name, context.scalar)?;
                let like =
                    Like::read(&pattern, *escape).map_err(|wrong| self.scope.wrong(literal.at, wrong))?;
                tested(Predicate::Like(like), is_negated)
            }
        })
    }

    fn pattern(&self, literal: &Literal, name: &str, scalar: Scalar) -> Result<String> {
        if scalar != Scalar::Text {
            let wrong =
                QueryErrorKind::Kind { name: name.to_owned(), has: scalar.describe(), wanted: "pattern" };
            return self.wrong(literal.at, wrong);
        }
        match &literal.of {
            LiteralSource::Text(text) => Ok(text.clone()),
            LiteralSource::Parameter(parameter) => match self.parameters.get(parameter) {
                Some(Wrapped::Text(text)) => Ok(text.clone()),
                Some(_) => {
                    let (name, field) = (parameter.clone(), name.to_owned());
                    self.wrong(
                        literal.at,
                        QueryErrorKind::Parameter { name, value: "no text".to_owned(), field },
                    )
                }
                None => self.wrong(literal.at, QueryErrorKind::Unset(parameter.clone())),
            },
        }
    }

    /// Fails for multi-valued and unordered fields.
    fn single(&mut self, path: &syntax::Path, number: u8, place: &'static str) -> Result<(Field, Scalar)> {
        let field = self.field(path)?;
        let Some(scalar) = field.scalar() else {
            let (of, name) = (self.scope.of.full_name().to_owned(), field.name);
            return self.wrong(path.at, QueryErrorKind::Selected { of, name });
        };
        if field.is_repeated() {
            return self.wrong(path.at, QueryErrorKind::Repeated { number, name: field.name, place });
        }
        Ok((field, scalar))
    }

    fn rows(&mut self, statement: &Statement) -> Result<(Vec<String>, Answer)> {
        let mut names = Vec::new();
        for term in &statement.select {
            let (name, column) = match term {
                Term::Path(path) => match self.scope.resolve(path)? {
                    Resolution::Entity => (ENTITY.to_owned(), Column::Entity),
                    Resolution::Field(_) => {
                        let (field, _) = self.single(path, 27, "projected")?;
                        (field.name.clone(), Column::Slot(self.slot(&field)?))
                    }
                },
                Term::Version(path) => (self.of_entity("version()", path)?, Column::Version),
                Term::Score(path) => (self.of_entity("score()", path)?, Column::Nothing),
                Term::Aggregate(_) => return Err(QueryErrorKind::Projections.into()),
            };
            self.new_column(column)?;
            names.push(name);
        }
        if statement.is_delete {
            self.new_column(Column::Version)?;
        } else if names.is_empty() {
            self.new_column(Column::Entity)?;
        }
        let (selected, mut order) = (self.columns.len(), Vec::new());
        for by in &statement.order {
            let Term::Path(path) = &by.by else {
                let wrong = QueryErrorKind::Unsupported("ordering by versions or scores is not supported");
                return self.wrong(by.by.at(), wrong);
            };
            let (field, scalar) = self.single(path, 24, "used in the ORDER BY clause")?;
            if scalar == Scalar::Bytes {
                return self.wrong(path.at, unordered(&field.name, scalar));
            }
            let slot = self.slot(&field)?;
            self.new_column(Column::Slot(slot))?;
            order.push(by.is_descending);
        }
        Ok((names, Answer::Rows { selected, order }))
    }

    fn of_entity(&self, name: &str, path: &syntax::Path) -> Result<String> {
        match self.scope.resolve(path)? {
            Resolution::Entity => Ok(name.to_owned()),
            Resolution::Field(_) => self.wrong(
                path.at,
                QueryErrorKind::Unsupported("the function needs the alias of an entity, not a field"),
            ),
        }
    }

    fn groups(&mut self, statement: &Statement) -> Result<(Vec<String>, Answer)> {
        if statement.select.is_empty() {
            return Err(QueryErrorKind::Projections.into());
        }
        let is_aggregated = statement.select.iter().any(|term| matches!(term, Term::Aggregate(_)));
        // DISTINCT is compiled to groups without aggregates.
        let by_distinct = statement.is_distinct && statement.group.is_empty() && !is_aggregated;
        let by = if by_distinct { &statement.select } else { &statement.group };
        let mut groups = Groups { keys: Vec::new(), aggregates: Vec::new() };
        for term in by {
            let path = match term {
                Term::Path(path) => path,
                Term::Aggregate(Aggregate { at, function, .. }) => {
                    let wrong = QueryErrorKind::Aggregate {
                        number: 16,
                        clause: "GROUP BY",
                        function: function.name(),
                    };
                    return self.wrong(*at, wrong);
                }
                Term::Version(path) | Term::Score(path) => {
                    return self.wrong(
                        path.at,
                        QueryErrorKind::Unsupported("grouping by versions or scores is not supported"),
                    );
                }
            };
            if matches!(self.scope.resolve(path)?, Resolution::Entity) {
                return self.wrong(
                    path.at,
                    QueryErrorKind::Unsupported("entities cannot be grouped or made distinct; select fields"),
                );
            }
            let (field, scalar) = self.single(path, 23, "used in the GROUP BY clause")?;
            if groups.keys.iter().all(|(name, ..)| *name != field.name) {
                let slot = self.slot(&field)?;
                self.column(Column::Slot(slot))?;
                let context = FieldContext::of(field.name.clone(), scalar, field.kind().as_ref());
                groups.keys.push((field.name, Some(context)));
            }
        }
        let keys = groups.keys.len();
        let (mut names, mut selected, mut order) = (Vec::new(), Vec::new(), Vec::new());
        for term in &statement.select {
            let (name, at) = groups.place(self, term)?;
            names.push(name);
            selected.push(at);
        }
        for by in &statement.order {
            order.push((groups.place(self, &by.by)?.1, by.is_descending));
        }
        let having = match &statement.having {
            Some(having) => {
                self.condition(having, false, &mut |compiler, term| groups.side(compiler, term))?
            }
            None => Condition::Constant(true),
        };
        let aggregates = groups.aggregates.into_iter().map(|(_, counted)| counted).collect();
        Ok((names, Answer::Groups(Grouping { keys, aggregates, having, selected, order })))
    }
}

/// The column name of entities.
pub const ENTITY: &str = "*";

struct Groups {
    keys: Vec<(String, Option<FieldContext>)>,
    aggregates: Vec<(String, AggregateColumn)>,
}

impl Groups {
    fn place(&mut self, compiler: &mut Compiler<'_>, term: &Term) -> Result<(String, usize)> {
        match term {
            Term::Aggregate(aggregate) => self.aggregate(compiler, aggregate),
            Term::Path(path) => {
                let name = match compiler.scope.resolve(path)? {
                    Resolution::Field(field) => field.name,
                    Resolution::Entity => path.text(),
                };
                match self.keys.iter().position(|(key, _)| *key == name) {
                    Some(at) => Ok((name, at)),
                    None => compiler.wrong(path.at, QueryErrorKind::Grouped(name)),
                }
            }
            Term::Version(path) | Term::Score(path) => {
                compiler.wrong(path.at, QueryErrorKind::Grouped(path.text()))
            }
        }
    }

    fn aggregate(&mut self, compiler: &mut Compiler<'_>, aggregate: &Aggregate) -> Result<(String, usize)> {
        let Aggregate { at, function, is_distinct, of } = aggregate;
        let of = match of {
            None => None,
            Some(path) => match compiler.scope.resolve(path)? {
                Resolution::Entity if *function == Function::Count && !is_distinct => None,
                Resolution::Entity => return compiler.wrong(path.at, QueryErrorKind::Entity(path.text())),
                Resolution::Field(field) => Some(field),
            },
        };
        let name = of.as_ref().map_or_else(|| ENTITY.to_owned(), |field| field.name.clone());
        let name = format!("{}({}{name})", function.name(), if *is_distinct { "DISTINCT " } else { "" });
        let (column, scalar) = match of {
            None => (None, Scalar::Long),
            Some(field) => {
                let Some(scalar) = field.scalar() else {
                    let (of, name) = (compiler.scope.of.full_name().to_owned(), field.name);
                    return compiler.wrong(*at, QueryErrorKind::Selected { of, name });
                };
                let wanted = match function {
                    Function::Sum if !scalar.is_number() => Some("sum"),
                    Function::Avg if !scalar.is_number() => Some("mean"),
                    Function::Min | Function::Max if scalar == Scalar::Bytes => Some("order"),
                    _ => None,
                };
                if let Some(wanted) = wanted {
                    let wrong = QueryErrorKind::Kind { name: field.name, has: scalar.describe(), wanted };
                    return compiler.wrong(*at, wrong);
                }
                let slot = compiler.slot(&field)?;
                (Some(compiler.column(Column::Slot(slot))?), scalar)
            }
        };
        let counted = AggregateColumn { function: *function, is_distinct: *is_distinct, column, scalar };
        let there = self.aggregates.iter().position(|(_, there)| *there == counted);
        let place = there.unwrap_or_else(|| {
            self.aggregates.push((name.clone(), counted));
            self.aggregates.len() - 1
        });
        Ok((name, self.keys.len() + place))
    }

    fn side(&mut self, compiler: &mut Compiler<'_>, term: &Term) -> Result<Operand> {
        let (name, slot) = self.place(compiler, term)?;
        let key = self.keys.get(slot).and_then(|(_, context)| context.as_ref());
        let context = match (key, slot.checked_sub(self.keys.len()).and_then(|at| self.aggregates.get(at))) {
            (Some(key), _) => Some(FieldContext {
                name: key.name.clone(),
                scalar: key.scalar,
                of_enum: key.of_enum.clone(),
            }),
            (None, Some((name, counted))) => Some(FieldContext::of(name.clone(), counted.becomes(), None)),
            (None, None) => None,
        };
        Ok(Operand { slot, name, context })
    }
}

fn unordered(name: &str, scalar: Scalar) -> QueryErrorKind {
    QueryErrorKind::Kind { name: name.to_owned(), has: scalar.describe(), wanted: "order" }
}

const fn opposite(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Equal => Comparison::Equal,
        Comparison::Less => Comparison::GreaterOrEqual,
        Comparison::LessOrEqual => Comparison::Greater,
        Comparison::Greater => Comparison::LessOrEqual,
        Comparison::GreaterOrEqual => Comparison::Less,
    }
}
