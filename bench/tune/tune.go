package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/version"
)

// tuneOptions are the flags of the program. One goroutine uses them, that of the command; no method
// changes them.
type tuneOptions struct {
	hosts     int    // number of hosts, this one included
	bytes     string // sizes of the tensor
	runs      int    // number of times that each candidate is measured
	listen    string // address at which the first host waits; "" = all hosts are here
	join      string // HOST:PORT where the first host waits; "" = this is the first host
	tokenFile string // file with the token of the others
	plain     bool   // whether tensors travel without encryption
	json      bool   // whether to print JSON objects
}

// newCommand returns the command of the program.
func newCommand() *cobra.Command {
	var o tuneOptions
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Measure how hosts exchange tensors best",
		Long: `Measure an all-reduce between hosts by every candidate: a schedule, the size of its pieces, and on how many streams of each
link they travel, as in ring/256x4 (one, if it does not say).

First a few transfers are measured, and a model of the network is fitted to them: the time of a step, of a piece and of a byte.
Then every candidate is predicted by the model and measured, size by size. What a job would choose from the model alone is marked.

From 2 MiB on each size is also taken for the gradients of a training step, which are averaged in buckets while a backward pass makes
them: one that takes as long as averaging them all at once. Predicted and measured is the time of both together, for every size of buckets.
No training runs; a job on these hosts is better not running at the same time.

Without --listen and --join the hosts are in this process, and talk over the loopback.`,
		Example: `  go run ./bench/tune
  go run ./bench/tune --hosts 3 --listen :7077 --token-file token    on the first host
  go run ./bench/tune --join first:7077 --token-file token           on the two others`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sizes, err := o.validate()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), sizes, cmd.InOrStdin(), cmd.OutOrStdout(),
				cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.hosts, "hosts", 3, "number of hosts, this one included")
	flags.StringVar(&o.bytes, "bytes", "4KiB,256KiB,4MiB,16MiB",
		"`sizes` of the tensor: whole numbers of B, KiB, MiB, GiB, kB, MB or GB")
	flags.IntVar(&o.runs, "runs", 5, "times that each candidate is measured; the median counts")
	flags.StringVar(&o.listen, "listen", "",
		"wait for the other hosts at this `ADDRESS`, such as :7077")
	flags.StringVar(&o.join, "join", "",
		"take part in a measurement that waits at this `HOST:PORT`")
	flags.StringVar(&o.tokenFile, "token-file", "",
		"with --listen: write the token of the others to this `FILE`; with --join: read it")
	flags.BoolVar(&o.plain, "unencrypted-data", false,
		"send tensors in the clear; anyone on the network can read and change them")
	flags.BoolVar(&o.json, "json", false, "print one JSON object a candidate")
	return cmd
}

// validate checks the flags and returns the sizes in bytes.
func (o tuneOptions) validate() (sizes []int64, err error) {
	switch {
	case o.hosts < 2:
		return nil, cli.Usagef("--hosts %d: an exchange takes 2 hosts or more", o.hosts)
	case o.runs < 1:
		return nil, cli.Usagef("--runs %d: a candidate must be measured once or more", o.runs)
	case o.listen != "" && o.join != "":
		return nil, cli.Usagef(
			"--listen is for the first host and --join for the others: use one of them")
	case (o.listen != "" || o.join != "") != (o.tokenFile != ""):
		return nil, cli.Usagef("--token-file belongs to --listen and --join: the first host " +
			"writes it, the others read a copy")
	}
	if err := cmp.Or(cli.CheckAddress("join", o.join),
		cli.CheckAddress("listen", o.listen)); err != nil {
		return nil, err
	}
	for _, text := range strings.Split(o.bytes, ",") {
		bytes, err := cli.ParseBytes(strings.TrimSpace(text))
		if err != nil {
			return nil, cli.Usagef("--bytes: %v", err)
		}
		if bytes == 0 || bytes%4 != 0 || bytes > maxTuned {
			return nil, cli.Usagef("--bytes: %s is not a whole number of f32 elements up to %s",
				text, cli.FormatBytes(maxTuned))
		}
		sizes = append(sizes, bytes)
	}
	return sizes, nil
}

// run measures as the first host, whose other hosts are goroutines or join over the network, or
// with --join is another host until the measurement is over. It blocks until the measurement is
// over on all of its hosts.
func (o tuneOptions) run(ctx context.Context, sizes []int64, in io.Reader, out,
	notes io.Writer) error {
	config := tcp.Config{Job: "tune", Version: version.Version, PlainData: o.plain,
		Name: fabric.Host(cli.HostName("")), Listen: o.listen}
	if o.join != "" {
		token, err := cli.ReadToken(ctx, in, o.tokenFile, "shoal run --listen", tcp.CheckToken)
		if err != nil {
			return err
		}
		return runOtherHost(ctx, o.join, token, config)
	}
	if o.listen == "" {
		config.Listen = "127.0.0.1:0"
	}
	lead := &tuneLead{tuneHost: newTuneHost()}
	network, err := tcp.Create(config, lead)
	if err != nil {
		return err
	}
	lead.network = network
	others := group.New(ctx)
	defer context.AfterFunc(ctx, lead.news.Close)()
	if o.listen == "" {
		for range o.hosts - 1 {
			others.Go("a host", func(ctx context.Context) error {
				return runOtherHost(ctx, network.Addr(), network.Token(cli.TokenLife), config)
			})
		}
	} else if err = cli.WriteToken(o.tokenFile, network.Token(cli.TokenLife)); err == nil {
		fmt.Fprintf(notes, "shoal: on each of the other hosts, with this file:\n  go run "+
			"./bench/tune --join %s --token-file %s\n", network.Addr(), o.tokenFile)
	}
	if err == nil {
		err = o.measure(lead, sizes, out)
	}
	for _, host := range lead.hosts[min(1, len(lead.hosts)):] {
		lead.sendWord(host, tuneWord{Do: "over"})
	}
	err = errors.Join(err, network.Close())
	return errors.Join(err, others.Wait())
}

// runOtherHost joins the measurement at an address, and does what its first host asks until it is
// over. It blocks; in a measurement over the loopback it runs on a goroutine of its own.
func runOtherHost(ctx context.Context, at, token string, config tcp.Config) error {
	h := newTuneHost()
	network, err := tcp.Join(ctx, at, token, config, h)
	if err != nil {
		return err
	}
	h.network = network
	defer context.AfterFunc(ctx, h.news.Close)()
	return errors.Join(h.runSteps(), network.Close())
}

// tuneLine is the outcome of a candidate, and with --json one line of the output.
type tuneLine struct {
	Hosts int              `json:"hosts"`
	Bytes int64            `json:"bytes"` // of the tensor, or of the gradients of a step
	Route collective.Route `json:"route"`
	// bytes of a bucket of a training step; absent = one all-reduce
	Bucket      int64   `json:"bucket,omitempty"`
	BackwardUS  float64 `json:"backward_us,omitempty"` // of that step
	PredictedUS float64 `json:"predicted_us"`
	MeasuredUS  float64 `json:"measured_us"`
	Chosen      bool    `json:"chosen"` // by the model alone
}

// measure waits for the hosts, fits a model, and then measures every candidate of every size and
// prints it to out. It blocks on the goroutine of the command.
func (o tuneOptions) measure(lead *tuneLead, sizes []int64, out io.Writer) error {
	if err := lead.awaitHosts(o.hosts); err != nil {
		return err
	}
	model, err := lead.fitModel(o.runs)
	if err != nil {
		return err
	}
	if !o.json {
		fmt.Fprintf(out, "all-reduce of f32 over %d hosts: %s a batch, %s a step, %s a piece, "+
			"%.2f Gbit/s a cable of which a stream fills %.0f %%, sums at %.1f GB/s\n",
			o.hosts, plural.Seconds(model.Fixed), plural.Seconds(model.Alpha),
			plural.Seconds(model.Piece), 8e-9/model.Beta, 100*model.Share, 1e-9/model.Gamma)
	}
	for _, bytes := range sizes {
		chosen := policy.BestRoute(model, o.hosts, int(bytes))
		var samples []cost.Sample
		for _, r := range collective.Candidates(o.hosts, int(bytes)) {
			samples = append(samples, cost.Sample{Route: r, Bytes: int(bytes)})
		}
		if err := lead.measureAll(samples, o.runs); err != nil {
			return err
		}
		var lines []tuneLine
		for _, s := range samples {
			predicted := 1e6 * model.AllReduceSeconds(s.Route, s.Hosts, s.Bytes)
			lines = append(lines,
				tuneLine{Hosts: s.Hosts, Bytes: bytes, Route: s.Route, PredictedUS: predicted,
					MeasuredUS: 1e6 * s.Seconds, Chosen: s.Route == chosen})
		}
		if err := o.printLines(out, lines, "strategy/KiB", func(l tuneLine) string {
			return l.Route.String()
		}); err != nil {
			return err
		}
		if err := o.measureBuckets(lead, model, int(bytes), out); err != nil {
			return err
		}
	}
	return nil
}

// measureBuckets measures every size of buckets for a training step of so many bytes, and prints it
// to out.
func (o tuneOptions) measureBuckets(lead *tuneLead, model cost.Model, bytes int,
	out io.Writer) error {
	step := cost.Step{Hosts: o.hosts, Bytes: bytes,
		Backward: model.AllReduceSeconds(policy.BestRoute(model, o.hosts, bytes), o.hosts, bytes)}
	sizes := policy.BucketSizes(step.Bytes)
	if len(sizes) < 2 {
		return nil
	}
	route := func(bytes int) collective.Route { return policy.BestRoute(model, o.hosts, bytes) }
	chosen := policy.DecideBucketSize(model, step, sizes[0], route).To
	took, err := medianTimes(len(sizes), o.runs, func(i int) (float64, error) {
		return lead.timeExchange(route(sizes[i]), step, (bytes+sizes[i]-1)/sizes[i])
	})
	if err != nil {
		return err
	}
	var lines []tuneLine
	for i, size := range sizes {
		r := route(size)
		lines = append(lines,
			tuneLine{o.hosts, int64(bytes), r, int64(size), 1e6 * step.Backward,
				1e6 * model.StepSeconds(step, size, r), 1e6 * took[i], size == chosen})
	}
	title := "buckets, backward of " + plural.Seconds(step.Backward)
	return o.printLines(out, lines, title, func(l tuneLine) string {
		return cli.FormatBytes(l.Bucket) + ", " + l.Route.String()
	})
}

// printLines sorts the candidates of one size, the fastest first, and prints them to out. name is
// what a table calls a candidate.
func (o tuneOptions) printLines(out io.Writer, lines []tuneLine, title string,
	name func(tuneLine) string) error {
	slices.SortStableFunc(lines, func(a, b tuneLine) int {
		return cmp.Compare(a.MeasuredUS, b.MeasuredUS)
	})
	if o.json {
		w := json.NewEncoder(out)
		for _, l := range lines {
			if err := w.Encode(l); err != nil {
				return err
			}
		}
		return nil
	}
	row := "%10s  %-28s %12s %12s  %s\n"
	fmt.Fprintf(out, "\n"+row, cli.FormatBytes(lines[0].Bytes), title, "predicted", "measured", "")
	for _, l := range lines {
		mark := ""
		if l.Chosen {
			mark = "chosen"
		}
		if _, err := fmt.Fprintf(out, row, "", name(l), plural.Seconds(1e-6*l.PredictedUS),
			plural.Seconds(1e-6*l.MeasuredUS), mark); err != nil {
			return err
		}
	}
	return printErrors(out, lines)
}

// printErrors prints how far off the predictions are, and how good the choice by them is. lines are
// in the order of what was measured, and one of them is chosen. It changes nothing, and waits for
// out alone.
func printErrors(out io.Writer, lines []tuneLine) error {
	off := make([]float64, len(lines))
	var chosen tuneLine
	for i, l := range lines {
		off[i] = max(l.PredictedUS/l.MeasuredUS, l.MeasuredUS/l.PredictedUS)
		if l.Chosen {
			chosen = l
		}
	}
	slices.Sort(off)
	_, err := fmt.Fprintf(out, "%10s  chosen takes %.0f %% more than the fastest; predictions "+
		"are off by a factor of %.2f in the median, %.2f at most\n", "",
		100*(chosen.MeasuredUS/lines[0].MeasuredUS-1), off[len(off)/2], off[len(off)-1])
	return err
}
