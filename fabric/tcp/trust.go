package tcp

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// Whom an agent believes: the authority of its job, and certificates. The functions without a
// receiver keep nothing and wait for nobody, so any goroutine may call them.

// authority is the certificate authority of one job. Every agent has its key, so that any of them
// can let newcomers in; it is in memory only and ends with the job, unless somebody keeps it who
// begins the job again. It is never changed, so any goroutine may call its methods, which do no
// I/O.
type authority struct {
	key         ed25519.PrivateKey // signs the certificates of agents
	certificate *x509.Certificate  // signed by key itself
}

// serverName is the name in every agent's certificate; who an agent is stands in the common name.
const serverName = "shoal"

// Certificates are as good as the job is old: clocks of hosts differ, and what ends trust is the
// end of the job.
var (
	notBefore = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	notAfter  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// newAuthority makes the authority of a new job. Its certificate is shown to anybody who dials, so
// it does not name the job.
func newAuthority() (*authority, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          randomSerial(),
		Subject:               pkix.Name{CommonName: "authority of a job"},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	return openAuthority(der, key.Seed())
}

// openAuthority returns the authority that this agent has made or another one has sent, once it has
// checked that the key is that of the certificate. It keeps neither list.
func openAuthority(der, seed []byte) (*authority, error) {
	certificate, err := x509.ParseCertificate(slices.Clone(der)) // which would keep it
	if err != nil {
		return nil, fmt.Errorf("tcp: the job's authority: %w", err)
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("tcp: the key of the job's authority has %d bytes instead of %d",
			len(seed), ed25519.SeedSize)
	}
	a := &authority{ed25519.NewKeyFromSeed(seed), certificate}
	if !a.key.Public().(ed25519.PublicKey).Equal(certificate.PublicKey) {
		return nil, errors.New("tcp: the key of the job's authority is not that of its certificate")
	}
	return a, nil
}

// bytes returns the seed of the key, and then the certificate, as parseAuthority reads them.
func (a *authority) bytes() []byte { return append(a.key.Seed(), a.certificate.Raw...) }

// parseAuthority reads what bytes wrote.
func parseAuthority(b []byte) (*authority, error) {
	if len(b) < ed25519.SeedSize {
		return nil, fmt.Errorf("tcp: this is no authority of a job: %d bytes are too few", len(b))
	}
	return openAuthority(b[ed25519.SeedSize:], b[:ed25519.SeedSize])
}

// randomSerial returns a random serial number for a certificate.
func randomSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	return new(big.Int).SetBytes(b[:])
}

// certify returns a certificate for an agent's name and key, as DER. One without a name is good to
// answer with.
func (a *authority) certify(host fabric.Host, key ed25519.PublicKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: randomSerial(),
		Subject:      pkix.Name{CommonName: string(host)},
		DNSNames:     []string{serverName},
		NotBefore:    notBefore,
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("tcp: a certificate for %s: %w", host, err)
	}
	return der, nil
}

// tlsConfigs returns the TLS settings of an agent: one for the connections that it accepts, one for
// those that it dials. Who dials shows its name, to an agent of the job and to nobody else; who
// answers must show a certificate to strangers too, so that one has no name in it.
func (a *authority) tlsConfigs(certificate []byte, key ed25519.PrivateKey) (server,
	client *tls.Config, err error) {
	nameless, err := a.certify("", key.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	with := func(certificate []byte) *tls.Config {
		c := baseTLS()
		c.Certificates = []tls.Certificate{
			{Certificate: [][]byte{certificate, a.certificate.Raw}, PrivateKey: key}}
		return c
	}
	server, client = with(nameless), with(certificate)
	server.ClientCAs = pool
	// newcomers have none yet; they may only ask to join
	server.ClientAuth = tls.VerifyClientCertIfGiven
	client.RootCAs = pool
	return server, client, nil
}

// baseTLS returns the TLS settings that all connections of agents have.
func baseTLS() *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		NextProtos:                  []string{"shoal"},
		ServerName:                  serverName,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true, // bulk data: full records from the start
	}
}

// newcomerTLS returns the TLS settings of an agent that has no certificate yet and knows the
// authority by its fingerprint only.
func newcomerTLS(t token) *tls.Config {
	c := baseTLS()
	// the chain is verified below, from the certificate that has the fingerprint
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(state tls.ConnectionState) error {
		for _, presented := range state.PeerCertificates[1:] {
			if sha256.Sum256(presented.Raw) == t.authority {
				pool := x509.NewCertPool()
				pool.AddCert(presented)
				_, err := state.PeerCertificates[0].Verify(
					x509.VerifyOptions{Roots: pool, DNSName: serverName})
				return err
			}
		}
		return errOtherAuthority
	}
	return c
}

var errOtherAuthority = errors.New("the agent there belongs to another job than the token: use " +
	"a token that was made by a host of that job, or the address of a host of the token's")

// identity is who a peer is, by its certificate.
type identity struct {
	// host is the name of the agent; "" = it is the one that was dialled, or showed no certificate.
	host fabric.Host
	// key is the agent's public key as in its certificate: tells it from another agent that goes by
	// the same name.
	key string
}

// identify returns who is at the other end of a connection whose certificate has been verified;
// false: it showed none.
func identify(state tls.ConnectionState) (identity, bool) {
	if len(state.PeerCertificates) == 0 {
		return identity{}, false
	}
	c := state.PeerCertificates[0]
	return identity{fabric.Host(c.Subject.CommonName), string(c.RawSubjectPublicKeyInfo)}, true
}
