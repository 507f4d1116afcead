package tcp

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/shoal-ml/shoal/fabric"
)

// What agents say to each other first on a connection, whatever that is for. The functions run on
// the goroutine that has the connection; those that take one, or its frames, wait for the other
// agent until the connection's deadline, and the others are pure.

// Protocol is the version of the link protocol, and of the messages that links carry. Agents of
// different versions do not talk. In version 2 the messages of every step became bytes in place of
// JSON; in version 3 the names in the messages of package wire changed; in version 4 the log of a
// job has its setting, in version 5 the size in it, and in version 6 rounds and how workers
// synchronise; in version 7 generations say how many workers a job may have on each host, in
// version 8 a host tells a new head how many workers it is to start, in version 9 the layout of a
// job's state is compressed, and calls say where their memory overlaps, and in version 10 sends and
// receives that are posted name their partner by the number of the worker, and a host says why it
// cannot take its part in a reshape.
const Protocol = 10

// handshakeTime is how long a connection may take until both sides know what it is for.
const handshakeTime = 10 * time.Second

// plainMagic begins a stream of data without TLS.
const plainMagic = "SHOAL/1\n"

// What a connection is for.
const (
	wantJoin   = "join"   // let me in
	wantLink   = "link"   // be linked: this is the control stream
	wantData   = "data"   // this is a stream of data of the link that handed me the ticket
	wantAgents = "agents" // whom do you know?
)

// hello is the first frame of the agent that dialled. The words before the colons say for which
// Want a field is there.
type hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	Job      string `json:"job,omitempty"` // empty: a newcomer that takes any
	Want     string `json:"want"`

	Name    fabric.Host `json:"name,omitempty"`    // join: the name that it would like
	Key     []byte      `json:"key,omitempty"`     // join: its public key, Ed25519
	Expires int64       `json:"expires,omitempty"` // join: of the token, Unix time
	Proof   []byte      `json:"proof,omitempty"`   // join: that it knows the token's secret
	To      fabric.Host `json:"to,omitempty"`      // link: the name of the agent that it means
	Address string      `json:"address,omitempty"` // link: where it listens
	Ticket  []byte      `json:"ticket,omitempty"`  // data: from the welcome of the link
}

// welcome is the answer to a hello.
type welcome struct {
	Agents  []agent  `json:"agents,omitempty"`  // join, link, agents: who else is in the job
	Tickets [][]byte `json:"tickets,omitempty"` // link: one for each stream of data
	// OtherAddresses, with link, is where other interfaces of the one that answers are reached.
	OtherAddresses []string `json:"other_addresses,omitempty"`

	Joined *joined `json:"joined,omitempty"` // join
}

// joined makes a newcomer a member.
type joined struct {
	Job  string      `json:"job"`
	Host fabric.Host `json:"host"` // the name of the newcomer
	// the certificate for the newcomer's name and key, DER
	Certificate  []byte        `json:"certificate"`
	Authority    []byte        `json:"authority"`     // DER
	AuthorityKey []byte        `json:"authority_key"` // the seed of its key, Ed25519
	PlainData    bool          `json:"plain_data"`    // whether the job sends data without TLS
	By           agent         `json:"by"`            // the agent that let the newcomer in
	Used         []fabric.Host `json:"used"`          // names that nobody can have again
}

// agent is where an agent listens.
type agent struct {
	Host    fabric.Host `json:"host"`
	Address string      `json:"address"`
}

// refusal is the answer to a hello of an agent that refuses.
type refusal struct {
	By   fabric.Host `json:"by,omitempty"`   // the host that refuses; "" = it does not say
	Code string      `json:"code,omitempty"` // a code below, for programs; "" = none
	Text string      `json:"text"`           // what, why and what to do, for people
}

// Codes of refusals from which who dialled can go on.
const (
	codeTaken     = "taken"     // your name: join again and get another
	codeDuplicate = "duplicate" // we are linked, or my own call to you is on its way
	codeGone      = "gone"      // we were linked, and that does not come again
)

// Error returns what the agent says that refuses, with its name if that is known.
func (r *refusal) Error() string {
	if r.By == "" {
		return "refused: " + r.Text
	}
	return fmt.Sprintf("%s refused: %s", r.By, r.Text)
}

// refusef returns a refusal for people, whose text is formatted as by fmt.Sprintf.
func refusef(format string, args ...any) *refusal {
	return &refusal{Text: fmt.Sprintf(format, args...)}
}

// checkVersion returns a refusal for agents that have another protocol or another version of shoal
// than this one, and so may mean other things by the same words; nil = they have the same.
func (h *hello) checkVersion(version string) error {
	switch {
	case h.Protocol != Protocol:
		return refusef("the link protocol is %d here and %d there: use the same version of shoal "+
			"on all hosts", Protocol, h.Protocol)
	case h.Version != version:
		return refusef("shoal is %q here and %q there: use the same version on all hosts", version,
			sanitize(h.Version))
	}
	return nil
}

// checkJob returns a refusal for agents of other jobs, else nil; a newcomer may leave the name to
// the token, unless Refuse of the config says why not.
func (h *hello) checkJob(config *Config) error {
	job, any := config.Job, h.Job == "" && h.Want == wantJoin
	if any && config.Refuse != "" {
		return refusef("%s", config.Refuse)
	}
	if h.Job != job && !any {
		return refusef(
			"this is job %q and not %q: use the address and the token of the job that you mean",
			job, sanitize(h.Job))
	}
	return nil
}

// writeJSONFrame writes a frame of the handshake, v as JSON, and blocks until it is written. It
// writes nothing where v is longer than the kind allows.
func writeJSONFrame(to io.Writer, k kind, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > int(maxBody[k]) {
		return fmt.Errorf("a frame of kind %d with %d bytes; the limit is %d", k, len(body),
			maxBody[k])
	}
	_, err = to.Write(append(appendHead(nil, k, len(body)), body...))
	return err
}

// readHello waits for the first frame on a connection, which must be a hello.
func readHello(f *frames) (h hello, err error) {
	_, body, err := f.nextFrame(kindHello)
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(body, &h); err != nil {
		return h, fmt.Errorf("%w: a hello that is no JSON object of the right form: %w", errFrame,
			err)
	}
	return h, nil
}

// exchangeHello says hello on c and waits for the answer, which f reads from there. A refusal is
// returned as the error, a *refusal.
func exchangeHello(c net.Conn, f *frames, h hello) (w welcome, err error) {
	if err := writeJSONFrame(c, kindHello, h); err != nil {
		return w, explainConnError(err)
	}
	k, body, err := f.nextFrame(kindWelcome, kindRefusal)
	if err != nil {
		return w, explainConnError(err)
	}
	if k == kindRefusal {
		r := &refusal{}
		if err := json.Unmarshal(body, r); err != nil {
			return w, fmt.Errorf("%w: %w", errFrame, err)
		}
		r.By, r.Text = fabric.Host(sanitize(string(r.By))), sanitize(r.Text)
		return w, r
	}
	if err := json.Unmarshal(body, &w); err != nil {
		return w, fmt.Errorf("%w: %w", errFrame, err)
	}
	for i, a := range w.Agents {
		if err := CheckName(a.Host); err != nil {
			return w, err
		}
		w.Agents[i].Address = sanitize(a.Address)
	}
	return w, nil
}

// explainConnError returns err, of a connection, together with what it means, where that is known;
// nil for nil.
func explainConnError(err error) error {
	var record tls.RecordHeaderError
	var op *net.OpError
	switch {
	case errors.As(err, &record), errors.As(err, &op) && op.Op == "remote error" &&
		!strings.Contains(op.Err.Error(), "certificate"):
		return fmt.Errorf("what answers there is no agent of shoal: check the address (%w)", err)
	case errors.As(err, &op) && op.Op == "remote error":
		return fmt.Errorf("the agent there does not believe this one's certificate, which is of "+
			"another job: join with a token of its job (%w)", err)
	case hasHungUp(err):
		if number := syscall.Errno(0); errors.As(err, &number) {
			err = number // the error itself has another port each time
		}
		return fmt.Errorf("it hung up: is that a host of the job, and running? (%w)", err)
	}
	return err
}

// hasHungUp reports whether an error of a connection says that the other side has closed it.
func hasHungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// sanitize returns text from a peer as it can be shown: without control characters, and cut to 1
// KiB.
func sanitize(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) > int(maxBody[kindGoodbye]) {
		text = strings.ToValidUTF8(text[:maxBody[kindGoodbye]], "")
	}
	return text
}

// maxName is how many letters the name of a host may have.
const maxName = 64

// CheckName returns an error for host names that a terminal, a shell or a file system takes for
// something else: ".." is a folder, and "-rf" a flag. It is pure: packages that take names of hosts
// from elsewhere call it too.
func CheckName(name fabric.Host) error {
	ok := len(name) > 0 && len(name) <= maxName && !strings.ContainsRune("._-", rune(name[0]))
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("._-", r))
	}
	if !ok {
		return fmt.Errorf("%q cannot be the name of a host: use up to %d letters, digits, dots, "+
			"dashes and underscores, the first a letter or digit", sanitize(string(name)), maxName)
	}
	return nil
}
