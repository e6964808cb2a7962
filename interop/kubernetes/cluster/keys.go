package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// authority signs the certificates of one cluster.
type authority struct {
	directory   string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
	server      string
}

// keys writes certificates and kubeconfigs into the directory of the first argument, for an API server at the address of the
// second one, and nodes of the names that follow.
func keys() error {
	if len(os.Args) < 3 {
		fail("keys takes a directory, the API server's address, and names of nodes")
	}
	directory, address, nodes := os.Args[1], os.Args[2], os.Args[3:]
	ca, err := newAuthority(directory, address)
	if err != nil {
		return err
	}
	// The service of the API server has the first address of the services' range.
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"}
	addresses := []net.IP{net.ParseIP(address), net.IPv4(10, 96, 0, 1), net.IPv4(127, 0, 0, 1)}
	server := x509.Certificate{DNSNames: names, IPAddresses: addresses, Subject: pkix.Name{CommonName: "kube-apiserver"}}
	if _, _, err := ca.issue("apiserver", server); err != nil {
		return err
	}
	if err := ca.serviceAccounts(); err != nil {
		return err
	}
	users := map[string]pkix.Name{
		"admin":                   {CommonName: "admin", Organization: []string{"system:masters"}},
		"kube-controller-manager": {CommonName: "system:kube-controller-manager"},
		"kube-proxy":              {CommonName: "system:kube-proxy"},
		"kube-scheduler":          {CommonName: "system:kube-scheduler"},
	}
	for _, node := range nodes {
		users[node] = pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	}
	for name, subject := range users {
		if err := ca.user(name, subject); err != nil {
			return err
		}
	}
	return nil
}

func newAuthority(directory, address string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := x509.Certificate{Subject: pkix.Name{CommonName: "cluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	ca := &authority{directory, certificate, key, encode("CERTIFICATE", der), "https://" + address + ":6443"}
	if err := ca.write("ca.crt", ca.pem); err != nil {
		return nil, err
	}
	text, err := privateKey(key)
	if err != nil {
		return nil, err
	}
	return ca, ca.write("ca.key", text)
}

// issue writes NAME.crt and NAME.key, and returns both.
func (ca *authority) issue(name string, template x509.Certificate) ([]byte, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := sign(template, *ca.certificate, key, ca.key)
	if err != nil {
		return nil, nil, err
	}
	text, err := privateKey(key)
	if err != nil {
		return nil, nil, err
	}
	certificate := encode("CERTIFICATE", der)
	if err := ca.write(name+".crt", certificate); err != nil {
		return nil, nil, err
	}
	return certificate, text, ca.write(name+".key", text)
}

// user writes a kubeconfig, NAME.kubeconfig.
func (ca *authority) user(name string, subject pkix.Name) error {
	certificate, key, err := ca.issue(name, x509.Certificate{Subject: subject})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "here",
		"clusters": []any{map[string]any{"name": "here", "cluster": map[string]any{
			"server": ca.server, "certificate-authority-data": ca.pem}}},
		"users": []any{map[string]any{"name": name, "user": map[string]any{
			"client-certificate-data": certificate, "client-key-data": key}}},
		"contexts": []any{map[string]any{"name": "here", "context": map[string]any{"cluster": "here", "user": name}}},
	})
	if err != nil {
		return err
	}
	return ca.write(name+".kubeconfig", config)
}

// serviceAccounts writes the keys of service accounts' tokens.
func (ca *authority) serviceAccounts() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	text, err := privateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := ca.write("accounts.pub", encode("PUBLIC KEY", public)); err != nil {
		return err
	}
	return ca.write("accounts.key", text)
}

func (ca *authority) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(ca.directory, name), content, 0o600)
}

// sign returns a certificate of a day, by a parent.
func sign(template, parent x509.Certificate, key, by *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	return x509.CreateCertificate(rand.Reader, &template, &parent, &key.PublicKey, by)
}

func privateKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return encode("PRIVATE KEY", der), err
}

func encode(kind string, der []byte) []byte {
	return []byte(strings.TrimLeft(string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})), "\n"))
}
