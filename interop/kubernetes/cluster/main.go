// The programs of a Kubernetes cluster in one: the first argument names the program, the others are its own.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 {
		fail("the first argument names a program")
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	switch name {
	case "coredns":
		dnsserver.Directives = []string{"bind", "errors", "kubernetes"}
		coremain.Run()
	case "etcd":
		etcd()
	case "keys":
		if err := keys(); err != nil {
			fail(err.Error())
		}
	default:
		command, known := commands[name]
		if !known {
			fail("no program has the name " + name)
		}
		os.Exit(cli.Run(command()))
	}
}

// etcd serves at the URL of the first argument with data in the directory of the second.
func etcd() {
	if len(os.Args) != 3 {
		fail("etcd takes a URL and a directory")
	}
	here, err := url.Parse(os.Args[1])
	if err != nil {
		fail(err.Error())
	}
	peers := *here
	peers.Host = here.Hostname() + ":2380"
	config := embed.NewConfig()
	config.Dir = os.Args[2]
	config.LogLevel = "error"
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*here}, []url.URL{*here}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	config.InitialCluster = config.InitialClusterFromName("default")
	// The data does not outlive the test.
	config.UnsafeNoFsync = true
	server, err := embed.StartEtcd(config)
	if err != nil {
		fail(err.Error())
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-server.Err():
		fail(err.Error())
	case <-end:
		server.Close()
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
