package run

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
)

// fleet is the other hosts of a job that shoal run starts. newFleet makes it; the launcher calls
// what launcherConfig has put into its result. The fields above mu are set by newFleet,
// launcherConfig, createNetwork and invite, which run one after the other before another goroutine
// reads them. The goroutine of the command calls all methods but updateShortage and runAgent.
type fleet struct {
	job       string     // name of the job
	listen    string     // address at which other hosts join; "" = this host alone
	tokenFile string     // file that gets the join token; "" = none does
	hosts     []sshHost  // hosts on which agents are started over ssh
	slots     int        // number of workers that this host takes
	authority []byte     // of the network; nil = a new one
	open      bool       // whether hosts may also join by themselves
	plain     bool       // whether tensors travel without encryption
	notes     io.Writer  // where to tell people what happens
	task      *slurmTask // the task of Slurm that begins the job; nil = none does

	network *tcp.Network  // nil before createNetwork; the launcher closes it
	ssh     *group.Group  // the goroutines of invite, for which close waits; nil = none
	ended   chan struct{} // gets a token from each agent over ssh

	mu      sync.Mutex              // guards what follows
	left    int                     // number of agents over ssh that have not ended
	missing int                     // number of workers without a slot, before the job begins
	giveUp  context.CancelCauseFunc // ends a job that cannot begin
}

// plainWarning is what people are told on each host of a job with --unencrypted-data.
const plainWarning = "shoal: WARNING: tensors travel between hosts in the clear " +
	"(--unencrypted-data); control messages stay encrypted"

// stranded is why a job cannot begin: its agents are gone, and no other host is expected. It is a
// value.
type stranded struct {
	job     string // name of the job
	missing int    // number of workers without a slot
}

// Error says what the job lacks, and what to do.
func (e *stranded) Error() string {
	return fmt.Sprintf("job %s cannot begin: all agents of --hosts have ended, and there is no "+
		"room for %s; mend what is said above, or let other hosts join with --listen ADDRESS",
		e.job, plural.Of(e.missing, "worker"))
}

// sshHost is a host on which shoal run starts an agent. It is a value.
type sshHost struct {
	name  string // as ssh takes it, with a user or without
	slots int    // number of workers that the host takes
}

// jobName returns the name of the host in the job: as ssh knows it, without the user. If that is
// not a valid name, it returns "", and the host uses its own name.
func (h sshHost) jobName() string {
	name := h.name[strings.LastIndex(h.name, "@")+1:]
	if tcp.CheckName(fabric.Host(name)) != nil {
		return ""
	}
	return name
}

// parseHosts reads the text of --hosts, as in h1:4,h2:4. It is pure.
func parseHosts(list string) (hosts []sshHost, err error) {
	for _, word := range strings.Split(list, ",") {
		name, slots, ok := strings.Cut(strings.TrimSpace(word), ":")
		n, err := strconv.Atoi(slots)
		if !ok || name == "" || strings.HasPrefix(name, "-") || err != nil || n < 1 {
			return nil, cli.Usagef(
				"--hosts %s: %q is not HOST:SLOTS, as in --hosts node1:4,node2:4", list, word)
		}
		if n > job.MaxWorkers {
			return nil, cli.Usagef("--hosts %s: %q: a host takes 1 to %d workers", list, word,
				job.MaxWorkers)
		}
		hosts = append(hosts, sshHost{name, n})
	}
	return hosts, nil
}

// checkSlots fails if a host cannot take so many workers. It is pure.
func checkSlots(slots int) error {
	if slots < 0 || slots > job.MaxWorkers {
		return cli.Usagef("--slots %d: a host takes 0 to %d workers", slots, job.MaxWorkers)
	}
	return nil
}

// checkRoom fails for more workers than the hosts can have slots for, unless hosts may join by
// themselves.
func (f *fleet) checkRoom(workers int) error {
	room := f.slots
	for _, h := range f.hosts {
		room += h.slots
	}
	if f.open || f.listen == "" || workers <= room {
		return nil
	}
	return cli.Usagef("-n %d is more than the %s of --hosts and --slots; run fewer workers, "+
		"name more slots, or let other hosts join with --listen ADDRESS", workers,
		plural.Of(room, "slot"))
}

// launcherConfig returns what the launcher needs of the fleet; nil for this host alone. giveUp ends
// a job that cannot begin; it is called on a goroutine of the fleet or of the launcher.
func (f *fleet) launcherConfig(ctx context.Context, spec job.Spec,
	giveUp context.CancelCauseFunc) *launcher.Fleet {
	f.job, f.missing, f.giveUp = spec.Name, max(0, spec.Workers-f.slots), giveUp
	if f.listen == "" {
		return nil
	}
	return &launcher.Fleet{Slots: f.slots, Link: f.createNetwork, Addr: f.ownAddress(),
		Ready: func() {
			f.invite(ctx)
		}, Join: f.joinAddress, Token: func(life time.Duration) string {
			return f.network.Token(life)
		},
		Need: func(missing int) { f.updateShortage(func() { f.missing = missing }) }}
}

// updateShortage applies a change of what the job lacks before it begins, under f.mu, and writes to
// notes what it still waits for. It gives the job up when no host can come any more. Any goroutine
// may call it.
func (f *fleet) updateShortage(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	switch {
	case f.missing == 0:
	case !f.open && f.left == 0:
		f.giveUp(&stranded{f.job, f.missing})
	default:
		fmt.Fprintf(f.notes, "shoal: waiting for room for %s more", plural.Of(f.missing, "worker"))
		if len(f.hosts) > 0 { // else invite has told
			fmt.Fprintf(f.notes, "; another host gives it with shoal agent --join %s "+
				"--token-file FILE, and a token of shoal token %s", f.joinAddress(), f.job)
		}
		fmt.Fprintln(f.notes)
	}
}

// createNetwork makes the network of the job and listens for other hosts; h is told what comes. The
// launcher calls it once, before invite, and closes the network.
func (f *fleet) createNetwork(h fabric.Handler) (fabric.Network, error) {
	network, err := tcp.Create(
		tcp.Config{Job: f.job, Name: fabric.Host(cli.HostName(f.givenHostName())), Listen: f.listen,
			Version: version.Version, PlainData: f.plain, Authority: f.authority}, h)
	if err != nil {
		return nil, err
	}
	f.network = network
	return network, nil
}

// ownAddress returns the address at which other hosts reach this one, without a port: that of
// --listen, or the first address of this machine that is not for itself alone.
func (f *fleet) ownAddress() string {
	if host, _, err := net.SplitHostPort(f.listen); err == nil && host != "" && host != "0.0.0.0" &&
		host != "::" {
		return host
	}
	own := "127.0.0.1"
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			own = ip.IP.String()
			break
		}
	}
	if f.task != nil {
		return f.task.address(own)
	}
	return own
}

// givenHostName is the name of this host that somebody else has given it; "" = its own.
func (f *fleet) givenHostName() string {
	if f.task != nil {
		return f.task.node
	}
	return ""
}

// joinAddress returns the HOST:PORT at which other hosts join; the network exists by then. Any
// goroutine may call it then.
func (f *fleet) joinAddress() string {
	_, port, _ := net.SplitHostPort(f.network.Addr())
	return net.JoinHostPort(f.ownAddress(), port)
}

// invite starts a goroutine for each host of --hosts, which runs an agent there over ssh. If there
// is a file for the join token, it writes that, and to notes how other hosts join. The launcher
// calls it once, when the network is open. It does not wait for the agents; close does.
func (f *fleet) invite(ctx context.Context) {
	at, asked := f.joinAddress(), ctx
	token := f.network.Token(cli.TokenLife)
	f.ssh, f.ended, f.left = group.New(context.WithoutCancel(ctx)),
		make(chan struct{}, len(f.hosts)), len(f.hosts)
	for _, h := range f.hosts {
		f.ssh.Go("ssh "+h.name, func(ctx context.Context) error {
			// else it ends because the job was stopped
			if err := f.runAgent(ctx, h, at, token); err != nil && asked.Err() == nil {
				fmt.Fprintf(f.notes, "shoal: the agent on %s %v\n", h.name, err)
			}
			f.updateShortage(func() { f.left-- })
			f.ended <- struct{}{}
			return nil
		})
	}
	if f.task != nil {
		if err := f.task.writeMeeting(slurmMeeting{Join: at, Token: token}); err != nil {
			f.giveUp(err)
		}
		return
	}
	if f.tokenFile == "" {
		return
	}
	if err := cli.WriteToken(f.tokenFile, token); err != nil {
		fmt.Fprintf(f.notes, "shoal: %v; shoal token %s --token-file FILE makes a token now, and "+
			"with that other hosts join: shoal agent --join %s --token-file FILE\n", err, f.job, at)
	} else {
		fmt.Fprintf(f.notes, "shoal: other hosts join with this file within %v, and this "+
			"command:\n  shoal agent --join %s --token-file %s\n", cli.TokenLife, at, f.tokenFile)
	}
	if len(f.hosts) == 0 {
		f.updateShortage(func() {})
	}
}

// runAgent runs an agent on a host over ssh until it ends, or ctx does, which is no error; a
// goroutine of invite calls it. at is where the agent joins. What it prints is of interest only
// when it fails: the lines of its workers come over the network.
func (f *fleet) runAgent(ctx context.Context, h sshHost, at, token string) error {
	here, err := os.Getwd() // where the script is: ssh begins at home
	if err != nil {
		return fmt.Errorf("is not started, because this folder has no path: %w", err)
	}
	words := []string{"-o", "BatchMode=yes", h.name, "cd", shellQuoted(here), "&&", "exec", "shoal",
		"agent", "--join", at, "--token-file", "-", "--slots", strconv.Itoa(h.slots)}
	if name := h.jobName(); name != "" {
		words = append(words, "--name", name)
	}
	cmd := exec.CommandContext(ctx, "ssh", words...)
	cmd.Stdin = strings.NewReader(token + "\n")
	cmd.WaitDelay = time.Second
	// Ctrl-C is for shoal run, which dismisses the agents
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said lastLines
	cmd.Stderr = &said
	if err = cmd.Run(); err == nil || ctx.Err() != nil {
		return nil
	}
	text := said.String()
	// it has not come so far as to say itself what is wrong
	if !strings.Contains(text, "    | shoal: ") {
		text += fmt.Sprintf("  next    is shoal on the PATH there, is there a folder %s, and "+
			"does `ssh %s true` work without a password?\n", here, h.name)
	}
	return fmt.Errorf("has ended: %w\n%s", err, strings.TrimSuffix(text, "\n"))
}

// shellQuoted returns a word in quotes for a shell, whatever is in it. It is pure.
func shellQuoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// parting is how long agents may take to end by themselves when the job is over.
const parting = 2 * time.Second

// close waits for the agents that invite has started, and kills the ssh processes that run for
// longer than parting. The command calls it when the job is over.
func (f *fleet) close() {
	if f.ssh == nil {
		return
	}
	late := time.After(parting)
	for waiting := len(f.hosts); waiting > 0; waiting-- {
		select {
		case <-f.ended:
		case <-late:
			waiting = 0
		}
	}
	f.ssh.Stop(nil)
	_ = f.ssh.Wait()
}

// lastLines keeps the end of what is written, 2 KiB. The goroutine of a command that runs writes,
// and String is called when that has ended.
type lastLines struct{ text []byte }

// Write implements io.Writer; it never fails.
func (l *lastLines) Write(p []byte) (int, error) {
	const most = 2 << 10
	l.text = append(l.text, p...)
	l.text = l.text[max(0, len(l.text)-most):]
	return len(p), nil
}

// String returns the lines, each after a mark that sets it off from those of shoal.
func (l *lastLines) String() string {
	var b strings.Builder
	for line := range strings.Lines(string(l.text)) {
		b.WriteString("    | " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
