package run

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/dash"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// What shoal run and shoal agent tell programs outside, such as the operator of Kubernetes. But for
// setRunDir, the goroutine of the command calls what is here; it reads and writes files.

// podFlags are the flags by which programs outside hear of a job, such as Prometheus and the
// operator in deploy/kube: what shoal run and shoal agent have in common.
type podFlags struct {
	metrics string // HOST:PORT for Prometheus; "" = none
	status  string // HOST:PORT at which the job is asked; "" = nowhere
	token   string // file with the token of who asks
	secret  string // what that file holds; check reads it
	end     string // file that gets how this host's part has ended; "" = none
	trust   string // of shoal run: file with the authority of the job; "" = a new one
}

// addTo defines the flags.
func (f *podFlags) addTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.metrics, "metrics", "", "answer Prometheus at this `ADDRESS`, such as "+
		":9400, with GET /metrics")
	flags.StringVar(&f.status, "status-listen", "", "answer requests that have the token of "+
		"--status-token-file at this `ADDRESS`: GET /v2/job, POST /v2/park to park the job, and "+
		"POST /v2/lost to say that another host is gone")
	flags.StringVar(&f.token, "status-token-file", "", "with --status-listen: `FILE` with the "+
		"token for its requests, any line of 16 characters or more")
	flags.StringVar(&f.end, "end-file", "", "when this command ends, write into this `FILE`, as "+
		"JSON, whether the job has ended or goes on elsewhere")
}

// pod answers questions about the job, and says how this host's part has ended. What is nil answers
// nobody.
type pod struct {
	metrics *exporter
	server  *dash.Status
	end     string
}

// open listens as the flags say. The caller closes the result.
func (f *podFlags) open(cmd *cobra.Command) (*pod, error) {
	if err := f.check(cmd); err != nil {
		return nil, err
	}
	show, err := openMetrics(cmd, f.metrics)
	if err != nil {
		return nil, err
	}
	p := &pod{metrics: show, end: f.end}
	if err := f.openStatus(cmd, p); err != nil {
		show.close()
		return nil, err
	}
	return p, nil
}

// check fails where the flags are wrong, as far as that shows before the command listens. It reads
// the token of --status-token-file, once.
func (f *podFlags) check(cmd *cobra.Command) error {
	switch {
	case f.metrics == "" && cmd.Flags().Changed("metrics"):
		return cli.Usagef("--metrics is empty: say where to answer, such as :9400")
	case (f.status == "") != (f.token == ""):
		return cli.Usagef("--status-listen ADDRESS and --status-token-file FILE belong " +
			"together: give both, or neither")
	}
	err := cmp.Or(cli.RefuseEmpty(cmd.Flags(), "end-file"), cli.CheckPlace("--end-file", f.end),
		cli.CheckAddress("metrics", f.metrics), cli.CheckAddress("status-listen", f.status))
	if err != nil || f.token == "" || f.secret != "" {
		return err
	}
	text, err := os.ReadFile(f.token)
	if err != nil {
		return cli.Usagef("--status-token-file: %v", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 || strings.ContainsAny(token, " \n\t") {
		return cli.Usagef("--status-token-file %s: its token must be one line of 16 "+
			"characters or more without spaces", f.token)
	}
	f.secret = token
	return nil
}

// openStatus listens at the address of --status-listen, if there is one, for p.
func (f *podFlags) openStatus(cmd *cobra.Command, p *pod) error {
	if f.status == "" {
		return nil
	}
	var err error
	if p.server, err = dash.OpenStatus("--status-listen", f.status, f.secret); err != nil {
		return cli.AsUsage(err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "shoal: status at http://%s/v2/job\n", p.server.Addr())
	return nil
}

// setRunDir says in which directory the run is, from any goroutine.
func (p *pod) setRunDir(dir string) {
	p.metrics.setRunDir(dir)
	if p.server != nil {
		p.server.ShowRun(dir)
	}
}

// close ends the answers.
func (p *pod) close() {
	p.metrics.close()
	if p.server != nil {
		p.server.Close()
	}
}

// writeEnd writes how this host's part in a job has ended: result is that of the job, where this
// host led it, and goesOn says that it goes on elsewhere. interrupted says that this host was ended
// before. err is that of the command.
func (p *pod) writeEnd(result *runs.Result, goesOn, interrupted bool, err error) error {
	if p.end == "" {
		return nil
	}
	state, why := "over", ""
	switch {
	case goesOn || result != nil && result.Drained:
		state = "left"
	case interrupted:
		state = "interrupted"
	case (result == nil || result.GoesOn != "") && err == nil:
	case result == nil:
		why = err.Error()
	case result.Parked:
		state = "parked"
	case result.StoppedBy != "": // with an error too, where workers were ended in their step
		state, why = "stopped", "it was stopped by "+result.StoppedBy
	case err != nil:
		state = "failed"
	default:
		state = "finished"
	}
	if err != nil {
		why = err.Error()
	}
	text, err := endText(state, why)
	if err != nil {
		return err
	}
	// not renamed into place: the file may be mounted
	if err := os.WriteFile(p.end, text, 0o644); err != nil {
		return fmt.Errorf("--end-file: %w", err)
	}
	return nil
}

// endText returns what the file of --end-file has, in at most so many bytes as a termination
// message of Kubernetes has: JSON that was cut would say nothing at all.
func endText(state, why string) ([]byte, error) {
	const most = 4096
	for n := 2000; ; n /= 2 { // a character can be six in JSON
		if len(why) > n {
			why = strings.ToValidUTF8(why[:n], "") // whole characters
		}
		text, err := json.Marshal(map[string]string{"state": state, "why": why})
		if err != nil || len(text) < most {
			return append(text, '\n'), err
		}
	}
}

// readAuthority returns the authority in the file of --authority-file, as the operator writes it;
// nil if path is "".
func readAuthority(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cli.Usagef("--authority-file: %v", err)
	}
	authority, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(authority) == 0 {
		return nil, cli.Usagef("--authority-file %s holds no authority in base64, as who starts "+
			"the hosts of a job makes it", path)
	}
	return authority, nil
}
