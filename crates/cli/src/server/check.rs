//! `consort server --check`: the file together with the options.

use consort_conf::{check_required_layers, load_stack};
use consort_server::{ClusterSettings, ServerFile, Severity};

use super::ServerCommand;
use crate::server_config::{self, Check};

impl ServerCommand {
    /// Finds the settings that a server has with this file and the options, and all problems.
    pub(super) async fn check_file(&self, file: &ServerFile) -> Check {
        let mut others = Vec::new();
        if let Err(error) = self.check_authentication(Some(file)).await {
            others.push(error.to_string());
        }
        let (builder, errors) = self.builder_with_files(Some(file));
        if errors.is_empty() {
            others.extend(server_config::contradiction(&builder));
        }
        others.extend(errors.iter().map(|error| format!("{error:#}")));
        let cluster = self.cluster_settings(file).unwrap_or_else(|error| {
            others.push(format!("{error:#}"));
            file.cluster().cloned()
        });
        let realm = file.realm_files();
        let tls = self.tls.files().or_else(|| realm.as_ref()?.tls().cloned());
        let users = self.users.as_deref().or_else(|| realm.as_ref()?.users());
        let effective = file.effective(&builder).cluster(cluster.as_ref()).users(users).tls(tls.as_ref());
        let (problems, count) = (file.problems().to_vec(), |severity| file.problem_count(severity));
        let counts = (count(Severity::Refused), count(Severity::Warning));
        Check { effective: effective.to_string(), problems, counts, others }
    }

    /// The cluster of the file with the options of the command line.
    fn cluster_settings(&self, file: &ServerFile) -> anyhow::Result<Option<ClusterSettings>> {
        let Some(name) = &self.cluster else { return Ok(None) };
        let mut settings = file.cluster().cloned().unwrap_or_else(|| ClusterSettings::new(name));
        settings.name.clone_from(name);
        settings.member.clone_from(&self.name);
        settings.site.clone_from(&self.site);
        settings.rack.clone_from(&self.rack);
        settings.machine.clone_from(&self.machine);
        if self.stack.is_some() || file.cluster().is_none() {
            let join = self.join(name);
            let stack = load_stack(&join.config, &join.variables()?)?;
            check_required_layers(&stack.config)?;
            settings.stack = Some(stack);
        }
        Ok(Some(settings))
    }

    /// Refuses options of a cluster at a server that is in none.
    pub(super) fn check_cluster_options(&self, file: &ServerFile) -> anyhow::Result<()> {
        let options = [
            ("--stack", self.stack.is_some()),
            ("--name", self.name.is_some()),
            ("--bind", self.bind.is_some()),
            ("--diagnostics", self.diagnostics),
            ("--diagnostics-passcode", self.diagnostics_passcode.is_some()),
            ("--site", self.site.is_some()),
            ("--rack", self.rack.is_some()),
            ("--machine", self.machine.is_some()),
            ("--allow-weaker-authentication", self.allow_weaker_authentication),
        ];
        let found: Vec<&str> = options.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        anyhow::ensure!(
            self.cluster.is_some() || found.is_empty(),
            "{}: the server runs alone, because the file has no <transport>; name a cluster with --cluster, or leave out the option",
            found.join(", ")
        );
        let names = self.define.iter().map(|define| define.split('=').next().unwrap_or_default());
        let unused: Vec<&str> = names.filter(|name| !file.uses_variable(name)).collect();
        anyhow::ensure!(
            self.cluster.is_some() || unused.is_empty(),
            "-D {}: the file does not use the variable, and the server runs alone, because the file has no <transport>; leave it \
             out, or name a cluster with --cluster",
            unused.join(", -D ")
        );
        Ok(())
    }
}
