//! Options of schemas. Protostream accepts any option with a plain name anywhere, for example options of files within messages,
//! and ignores those that it does not know. The compiler here knows the options of each place and refuses others.

use protox::file::File;
use protox::prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, ServiceDescriptorProto,
    UninterpretedOption,
};

/// Options that change how a schema is read; none of the others does.
const WITH_EFFECT: [&str; 2] = ["allow_alias", "packed"];

/// Returns the file without the plain options that have no effect on its types. Options in brackets belong to extensions, which
/// the compiler checks.
pub(super) fn without_unknown(file: File) -> File {
    let mut without = file.file_descriptor_proto().clone();
    let mut remover = Remover { has_removed: false };
    remover.file(&mut without);
    // The unchanged file has its source, which errors show.
    if remover.has_removed { File::from_file_descriptor_proto(without) } else { file }
}

struct Remover {
    has_removed: bool,
}

impl Remover {
    fn options(&mut self, options: Option<&mut Vec<UninterpretedOption>>) {
        let Some(options) = options else { return };
        let before = options.len();
        options.retain(|option| {
            option.name.iter().any(|part| part.is_extension || WITH_EFFECT.contains(&&*part.name_part))
        });
        self.has_removed |= options.len() < before;
    }

    fn file(&mut self, file: &mut FileDescriptorProto) {
        self.options(file.options.as_mut().map(|of| &mut of.uninterpreted_option));
        file.message_type.iter_mut().for_each(|message| self.message(message));
        file.enum_type.iter_mut().for_each(|one| self.enumeration(one));
        file.service.iter_mut().for_each(|service| self.service(service));
        file.extension.iter_mut().for_each(|field| self.field(field));
    }

    /// Brackets of a file are nested at most `SCHEMA_NESTING_MAX` deep.
    fn message(&mut self, message: &mut DescriptorProto) {
        self.options(message.options.as_mut().map(|of| &mut of.uninterpreted_option));
        message.field.iter_mut().for_each(|field| self.field(field));
        message.extension.iter_mut().for_each(|field| self.field(field));
        message.nested_type.iter_mut().for_each(|nested| self.message(nested));
        message.enum_type.iter_mut().for_each(|one| self.enumeration(one));
        for one in &mut message.oneof_decl {
            self.options(one.options.as_mut().map(|of| &mut of.uninterpreted_option));
        }
    }

    fn field(&mut self, field: &mut FieldDescriptorProto) {
        self.options(field.options.as_mut().map(|of| &mut of.uninterpreted_option));
    }

    fn enumeration(&mut self, one: &mut EnumDescriptorProto) {
        self.options(one.options.as_mut().map(|of| &mut of.uninterpreted_option));
        for value in &mut one.value {
            self.options(value.options.as_mut().map(|of| &mut of.uninterpreted_option));
        }
    }

    fn service(&mut self, service: &mut ServiceDescriptorProto) {
        self.options(service.options.as_mut().map(|of| &mut of.uninterpreted_option));
        for method in &mut service.method {
            self.options(method.options.as_mut().map(|of| &mut of.uninterpreted_option));
        }
    }
}
