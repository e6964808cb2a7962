//! A recursive-descent parser with a depth limit. Keywords are case-insensitive and contextual: a field may be named
//! `order`.

use crate::error::{QueryError, QueryErrorKind};
use crate::lexer::{Placed, Token, tokens};
use crate::limits::{DEPTH_MAX, PATH_MAX, TEXT_MAX};
use crate::syntax::{
    Aggregate, Comparison, Expr, From, Function, Literal, LiteralSource, Order, Path, Statement, Term, Test,
};

type Result<T> = std::result::Result<T, QueryError>;

/// These can follow a type name, and are therefore no alias.
const AFTER_TYPE: [&str; 11] =
    ["WHERE", "GROUP", "ORDER", "HAVING", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "FETCH"];

const INDEX: &str = "=, LIKE, IN and BETWEEN look at all values";

impl Statement {
    /// Parses a query; a [`QueryError`] has the position.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > TEXT_MAX {
            return Err(QueryErrorKind::Long(text.len()).into());
        }
        Parser { text, tokens: tokens(text)?, next: 0, depth: 0 }.statement()
    }

    /// Returns whether it is a DELETE.
    pub const fn is_delete(&self) -> bool {
        self.is_delete
    }
}

struct Parser<'t> {
    text: &'t str,
    tokens: Vec<Placed<'t>>,
    next: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> &Token<'t> {
        self.ahead(0)
    }

    fn ahead(&self, by: usize) -> &Token<'t> {
        // Reading beyond the end returns the end token.
        self.tokens.get(self.next + by).map_or(&Token::End, |(_, token)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(self.text.len(), |(at, _)| *at)
    }

    fn take(&mut self) -> Token<'t> {
        let token = self.peek().clone();
        self.next += usize::from(self.next + 1 < self.tokens.len());
        token
    }

    fn is_word(&self, by: usize, word: &str) -> bool {
        matches!(self.ahead(by), Token::Word(there) if there.eq_ignore_ascii_case(word))
    }

    fn is_sign(&self, by: usize, sign: &str) -> bool {
        matches!(self.ahead(by), Token::Sign(there) if *there == sign)
    }

    fn is_one_of(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is_word(0, word))
    }

    fn word(&mut self, word: &str) -> bool {
        let is_there = self.is_word(0, word);
        if is_there {
            self.take();
        }
        is_there
    }

    fn sign(&mut self, sign: &str) -> bool {
        let is_there = self.is_sign(0, sign);
        if is_there {
            self.take();
        }
        is_there
    }

    fn wrong(&self, at: usize, wrong: QueryErrorKind) -> QueryError {
        QueryError::at(self.text, at, wrong)
    }

    fn expected<T>(&self, expected: &str) -> Result<T> {
        let wrong = QueryErrorKind::Syntax { expected: expected.to_owned(), found: self.peek().describe() };
        Err(self.wrong(self.at(), wrong))
    }

    fn index<T>(&self, what: &'static str) -> Result<T> {
        Err(self.wrong(self.at(), QueryErrorKind::Index { what, instead: INDEX }))
    }

    fn unsupported<T>(&self, what: &'static str) -> Result<T> {
        Err(self.wrong(self.at(), QueryErrorKind::Unsupported(what)))
    }

    fn needs_word(&mut self, word: &str) -> Result<()> {
        if self.word(word) { Ok(()) } else { self.expected(word) }
    }

    fn needs_sign(&mut self, sign: &str) -> Result<()> {
        if self.sign(sign) { Ok(()) } else { self.expected(&format!("'{sign}'")) }
    }

    fn statement(mut self) -> Result<Statement> {
        let is_delete = self.word("DELETE");
        let (mut select, mut is_distinct) = (Vec::new(), false);
        if !is_delete && self.word("SELECT") {
            is_distinct = self.is_word(0, "DISTINCT") && !matches!(self.ahead(1), Token::Sign(_));
            if is_distinct {
                self.take();
            }
            select = self.listed(Self::selected)?;
        }
        if !self.is_word(0, "FROM") {
            return self.expected(if is_delete || !select.is_empty() {
                "FROM"
            } else {
                "SELECT, FROM or DELETE"
            });
        }
        let from = self.from()?;
        let filter = if self.word("WHERE") { Some(self.any()?) } else { None };
        let (mut group, mut having, mut order) = (Vec::new(), None, Vec::new());
        if !is_delete && self.word("GROUP") {
            self.needs_word("BY")?;
            group = self.listed(Self::term)?;
            having = if self.word("HAVING") { Some(self.any()?) } else { None };
        }
        if !is_delete && self.word("ORDER") {
            self.needs_word("BY")?;
            order = self.listed(Self::order)?;
        }
        if *self.peek() != Token::End {
            let rest = match (is_delete, &filter, order.is_empty()) {
                (true, None, _) => "WHERE or the end",
                (true, Some(_), _) | (false, _, false) => "the end",
                (false, None, true) if group.is_empty() => "WHERE, GROUP BY, ORDER BY or the end",
                _ => "ORDER BY or the end",
            };
            return self.expected(rest);
        }
        Ok(Statement {
            text: self.text.to_owned(),
            is_delete,
            select,
            is_distinct,
            from,
            filter,
            group,
            having,
            order,
        })
    }

    fn listed<T>(&mut self, one: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut all = vec![one(self)?];
        while self.sign(",") {
            all.push(one(self)?);
        }
        Ok(all)
    }

    fn selected(&mut self) -> Result<Term> {
        let term = self.term()?;
        // An alias of the type is optional.
        if self.word("AS") || !self.is_word(0, "FROM") && matches!(self.peek(), Token::Word(_)) {
            self.name("a name")?;
        }
        Ok(term)
    }

    fn name(&mut self, expected: &str) -> Result<&'t str> {
        let Token::Word(word) = *self.peek() else { return self.expected(expected) };
        self.take();
        Ok(word)
    }

    fn from(&mut self) -> Result<From> {
        self.needs_word("FROM")?;
        let Path { at, names } = self.path("the name of a type")?;
        let alias = self.alias(&AFTER_TYPE)?;
        let mut joins = Vec::new();
        while self.is_one_of(&["JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS"]) {
            if self.is_word(0, "CROSS") {
                return self.unsupported("CROSS JOIN is not supported: a query has one type");
            }
            if !self.word("INNER") && self.is_one_of(&["LEFT", "RIGHT", "FULL"]) {
                self.take();
                self.word("OUTER");
            }
            self.needs_word("JOIN")?;
            self.word("FETCH");
            let path = self.path("a field of the type")?;
            joins.push((path, self.alias(&AFTER_TYPE)?));
            if self.is_one_of(&["ON", "WITH"]) {
                return self.unsupported("conditions of a JOIN are not supported: use WHERE");
            }
        }
        if self.is_sign(0, ",") {
            return self.unsupported("a query has one type");
        }
        Ok(From { at, name: names.join("."), alias, joins })
    }

    fn alias(&mut self, others: &[&str]) -> Result<Option<String>> {
        let is_alias = self.word("AS") || matches!(self.peek(), Token::Word(_)) && !self.is_one_of(others);
        // Keywords that can follow a joined path.
        let is_alias = is_alias && !self.is_one_of(&["ON", "WITH"]);
        if is_alias { Ok(Some(self.name("an alias")?.to_owned())) } else { Ok(None) }
    }

    fn path(&mut self, expected: &str) -> Result<Path> {
        let at = self.at();
        let mut names = vec![self.name(expected)?.to_owned()];
        while self.sign(".") {
            names.push(self.name("the name of a field")?.to_owned());
            if names.len() > PATH_MAX {
                return Err(self.wrong(at, QueryErrorKind::Path));
            }
        }
        Ok(Path { at, names })
    }

    fn order(&mut self) -> Result<Order> {
        let by = self.term()?;
        let is_descending = self.word("DESC");
        if !is_descending {
            self.word("ASC");
        }
        Ok(Order { by, is_descending })
    }

    /// A path, or a function of one.
    fn term(&mut self) -> Result<Term> {
        let at = self.at();
        if !self.is_sign(1, "(") {
            let path = self.path("a field")?;
            if self.is_sign(0, "[") {
                return self.unsupported("index access to multi-valued fields is not supported");
            }
            return Ok(Term::Path(path));
        }
        let function = Function::ALL.into_iter().find(|function| self.is_word(0, function.name()));
        if let Some(function) = function {
            self.take();
            self.needs_sign("(")?;
            let is_distinct = function == Function::Count
                && self.is_word(0, "DISTINCT")
                && matches!(self.ahead(1), Token::Word(_));
            if is_distinct {
                self.take();
            }
            let is_rows = self.is_sign(0, "*") || matches!(self.peek(), Token::Number(_));
            let of = if function == Function::Count && !is_distinct && is_rows {
                self.take();
                None
            } else {
                Some(self.path("a field")?)
            };
            self.needs_sign(")")?;
            return Ok(Term::Aggregate(Aggregate { at, function, is_distinct, of }));
        }
        let (is_version, is_score) = (self.is_word(0, "VERSION"), self.is_word(0, "SCORE"));
        if self.is_word(0, "DISTANCE") {
            return self.index("DISTANCE");
        }
        if !is_version && !is_score {
            return self.expected("a field, COUNT, SUM, AVG, MIN, MAX or VERSION");
        }
        self.take();
        self.needs_sign("(")?;
        let path = self.path("an alias")?;
        self.needs_sign(")")?;
        Ok(if is_version { Term::Version(path) } else { Term::Score(path) })
    }

    fn any(&mut self) -> Result<Expr> {
        let mut all = vec![self.all()?];
        while self.word("OR") || self.sign("||") {
            all.push(self.all()?);
        }
        Ok(one_or(all, Expr::Any))
    }

    fn all(&mut self) -> Result<Expr> {
        let mut all = vec![self.not()?];
        while self.word("AND") || self.sign("&&") {
            all.push(self.not()?);
        }
        Ok(one_or(all, Expr::All))
    }

    fn not(&mut self) -> Result<Expr> {
        let mut is_negated = false;
        while self.word("NOT") || self.sign("!") {
            is_negated = !is_negated;
        }
        let expr = self.condition()?;
        Ok(if is_negated { Expr::Not(Box::new(expr)) } else { expr })
    }

    fn condition(&mut self) -> Result<Expr> {
        let at = self.at();
        if self.sign("(") {
            if self.depth == DEPTH_MAX {
                return Err(self.wrong(at, QueryErrorKind::Deep));
            }
            self.depth += 1;
            let expr = self.any()?;
            self.depth -= 1;
            self.needs_sign(")")?;
            return Ok(expr);
        }
        for (word, is) in [("TRUE", true), ("FALSE", false)] {
            if self.is_word(0, word)
                && !matches!(self.ahead(1), Token::Sign("." | "=" | "<" | ">" | "<>" | "!="))
            {
                self.take();
                return Ok(Expr::Constant(is));
            }
        }
        match self.peek() {
            Token::Sign("+" | "-" | "#") if matches!(self.ahead(1), Token::Word(_)) => {
                return self.index("a full-text condition");
            }
            Token::Text(_) | Token::Number(_) | Token::Sign(":" | "+" | "-" | "?") => {
                return self.expected("a field on the left of a comparison");
            }
            _ => {}
        }
        let term = self.term()?;
        self.test(term)
    }

    fn test(&mut self, term: Term) -> Result<Expr> {
        if self.word("IS") {
            let is_negated = self.word("NOT");
            if !self.word("NULL") && !self.word("EMPTY") {
                return self.expected("NULL or EMPTY");
            }
            return Ok(negated(is_negated, Expr::Test(term, Test::Null)));
        }
        match *self.peek() {
            Token::Sign(":") => return self.index("a full-text search"),
            Token::Sign("<->") => return self.index("a vector search"),
            Token::Sign(sign @ ("=" | "<>" | "!=" | "<" | "<=" | ">" | ">=")) => {
                self.take();
                let comparison = match sign {
                    "<" => Comparison::Less,
                    "<=" => Comparison::LessOrEqual,
                    ">" => Comparison::Greater,
                    ">=" => Comparison::GreaterOrEqual,
                    _ => Comparison::Equal,
                };
                let test = Test::Compare(comparison, self.literal()?);
                return Ok(negated(matches!(sign, "<>" | "!="), Expr::Test(term, test)));
            }
            _ => {}
        }
        let is_negated = self.word("NOT");
        let test = if self.word("IN") {
            self.needs_sign("(")?;
            let all = self.listed(Self::literal)?;
            self.needs_sign(")")?;
            Test::In(all)
        } else if self.word("BETWEEN") {
            let low = self.literal()?;
            if !self.sign("&&") {
                self.needs_word("AND")?;
            }
            Test::Between(low, self.literal()?)
        } else if self.word("LIKE") {
            let pattern = self.literal()?;
            Test::Like(pattern, if self.word("ESCAPE") { Some(self.escape()?) } else { None })
        } else if self.is_word(0, "WITHIN") {
            return self.index("a spatial search");
        } else if self.is_word(0, "MEMBER") {
            return self.unsupported(
                "MEMBER OF is not supported: use =, which compares a multi-valued field with each value",
            );
        } else {
            return self.expected("a comparison, IS, IN, BETWEEN or LIKE");
        };
        Ok(negated(is_negated, Expr::Test(term, test)))
    }

    fn escape(&mut self) -> Result<char> {
        let one = match self.peek() {
            Token::Text(text) => {
                let mut chars = text.chars();
                chars.next().filter(|_| chars.next().is_none())
            }
            _ => None,
        };
        let Some(one) = one else { return self.expected("a text with one character") };
        self.take();
        Ok(one)
    }

    fn literal(&mut self) -> Result<Literal> {
        let at = self.at();
        let sign = if self.sign("-") {
            "-"
        } else if self.sign("+") {
            "+"
        } else {
            ""
        };
        let of = match self.peek().clone() {
            Token::Number(number) => LiteralSource::Text(format!("{sign}{number}")),
            _ if !sign.is_empty() => return self.expected("a number"),
            Token::Text(text) => LiteralSource::Text(text),
            Token::Word(word) if word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false") => {
                LiteralSource::Text(word.to_owned())
            }
            Token::Word(word) if word.eq_ignore_ascii_case("null") => {
                return self.expected("a value (use IS NULL for fields without one)");
            }
            Token::Sign(":") => {
                self.take();
                let Token::Word(name) = *self.peek() else { return self.expected("the name of a parameter") };
                LiteralSource::Parameter(name.to_owned())
            }
            Token::Sign("?") => {
                return self.unsupported("numbered parameters are not supported: use names, as in :name");
            }
            _ => return self.expected("a value such as 'text' or a parameter such as :name"),
        };
        self.take();
        Ok(Literal { at, of })
    }
}

fn negated(is_negated: bool, expr: Expr) -> Expr {
    if is_negated { Expr::Not(Box::new(expr)) } else { expr }
}

fn one_or(mut all: Vec<Expr>, several: fn(Vec<Expr>) -> Expr) -> Expr {
    match (all.len(), all.pop()) {
        (1, Some(one)) => one,
        (_, last) => {
            all.extend(last);
            several(all)
        }
    }
}
