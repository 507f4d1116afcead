package state

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/plan"
)

// shoal state plan. One goroutine runs what is here, that of the command, so nothing is locked. It
// reads what a checkpoint says of its tensors, and not the tensors.

// newStatePlanCommand returns the command shoal state plan.
func newStatePlanCommand() *cobra.Command {
	var from, to layoutFlags
	var source sourceFlags
	var devices int
	var links cli.Rate
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "plan SRC",
		Short: "Say what a change of layout would move, against the least that is possible",
		Long: cli.Help(`Say how many bytes a change of layout moves, against the least possible, and move nothing.
SRC is a checkpoint, which gives names, types and shapes.

  flag                           what it says
  --from-mesh, --from-preset     the state is in the memory of running ranks with this layout
  --from-layout                  the same, with the layout in a file
  (none of them)                 the state is in the files, on a host of its own
  --devices                      ranks that a host has
  --rate                         what a host sends, and receives at the same time; with it the plan
                                 says how long the links of the busiest host are busy`, cli.ExitCodes, "files"),
		Example: `  shoal state plan checkpoints/step-1000 --mesh dp=8 --preset fsdp2 --devices 4 --rate 10Gbit/s
  shoal state plan model --from-mesh dp=4 --from-preset fsdp2 --mesh dp=8 --preset fsdp2
  shoal state plan model --mesh pp=2,tp=4 --preset megatron-core`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if devices < 1 {
				return cli.Usagef("--devices %d: a host has at least one", devices)
			}
			if !to.isGiven() {
				return cli.Usagef("say to which layout: --mesh and --preset, or --layout")
			}
			if err := cmp.Or(to.check(), from.check()); err != nil {
				return err
			}
			if err := source.model.refuseUnused(cmd.Flags(), strings.Contains(
				to.preset+from.preset, "megatron-core")); err != nil {
				return err
			}
			c, err := source.open(args[0])
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.CheckNames(); err != nil {
				return err
			}
			p, err := buildPlan(c, &from, &to, &source.model, devices)
			if err != nil {
				return err
			}
			return showPlan(cmd.OutOrStdout(), p, links, asJSON)
		},
	}
	to.addTo(cmd.Flags(), "")
	from.addTo(cmd.Flags(), "from-")
	source.addTo(cmd.Flags())
	cmd.Flags().IntVar(&devices, "devices", 8, "ranks on a host")
	cmd.Flags().Var(&links, "rate",
		"what a host sends, and receives, in a second: 1.2GB/s, 10Gbit/s")
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print one JSON object, with the bytes of every host")
	return cmd
}

// buildPlan plans the move from one layout to another, or from the files of c if from asks for
// none. A host has the given number of devices, of which those beyond all ranks do not count. The
// caller has checked the flags.
func buildPlan(c *checkpoint.Checkpoint, from, to *layoutFlags, model *modelFlags,
	devices int) (*plan.Plan, error) {
	dst, err := resolveLayout(to, c, model)
	if err != nil {
		return nil, err
	}
	src, err := resolveLayout(from, c, model)
	if err != nil {
		return nil, err
	}
	if src != nil {
		devices = min(devices, max(src.Ranks, dst.Ranks))
		return plan.Build(src, dst, plan.UniformCluster(src.Ranks, dst.Ranks, devices))
	}
	if src, err = c.Layout(); err != nil {
		return nil, err
	}
	devices = min(devices, dst.Ranks)
	hosts := plan.Cluster{Devices: []int{0}, Old: make([]int, src.Ranks),
		New: make([]int, dst.Ranks)}
	for r := range hosts.New {
		if hosts.New[r] = r / devices; r%devices == 0 {
			hosts.Devices = append(hosts.Devices, devices)
		}
	}
	return plan.Build(src, dst, hosts)
}

// resolveLayout returns the layout that the flags ask for, for the tensors of c; nil if they ask
// for none.
func resolveLayout(l *layoutFlags, c *checkpoint.Checkpoint, model *modelFlags) (*layout.Layout,
	error) {
	spec, err := l.spec(c, model)
	if err != nil || spec == nil {
		return nil, err
	}
	return spec.Resolve(checkpoint.Catalogue(c.Checkpoint))
}

// planJSON is a plan in the output for programs, in bytes.
type planJSON struct {
	State        int    `json:"state"`
	Tensors      int    `json:"tensors"`       // number of tensors
	Bytes        int    `json:"bytes"`         // from host to host
	Bound        int    `json:"bound"`         // the least possible of these
	Busiest      int    `json:"busiest"`       // of the busiest host
	BusiestBound int    `json:"busiest_bound"` // the least possible for this placement
	Moves        int    `json:"moves"`         // number of boxes that move
	Depth        int    `json:"depth"`         // number of hosts that a byte passes at most
	Ingress      []int  `json:"ingress"`       // by host, what it receives
	Egress       []int  `json:"egress"`        // by host, what it sends
	Memory       []int  `json:"memory"`        // by host, its old and new ranks together
	Extra        []int  `json:"extra"`         // by host, its new ranks' part of that
	Hash         string `json:"hash"`          // of the plan, in hex

	LinkSeconds *float64 `json:"link_seconds,omitempty"` // absent = not known
}

// showPlan prints a plan to out, as text or as a JSON object. links is what a host sends in a
// second; 0 = not given.
func showPlan(out io.Writer, p *plan.Plan, links cli.Rate, asJSON bool) error {
	moves := 0
	for range p.Ops() {
		moves++
	}
	hash, s := p.Hash(), p.Stats
	seconds, predicted := linkSeconds(&s, links),
		"not known without --rate, what a host sends and receives in a second"
	if asJSON {
		return json.NewEncoder(out).Encode(
			planJSON{s.State, len(p.Dst.Tensors), s.Bytes, s.Bound, s.Busiest, s.BusiestBound,
				moves, s.Depth,
				s.Ingress, s.Egress, s.Memory, s.Extra, hex.EncodeToString(hash[:]), seconds})
	}
	if seconds != nil {
		predicted = fmt.Sprintf("%v on links", cli.RoundTime(*seconds))
	}
	_, err := fmt.Fprintf(out, `state          %d bytes, %s
moved          %d bytes from host to host, the least possible is %d
busiest host   %d bytes, the least possible is %d
extra memory   %d bytes on the host that needs most, %d with what it has
moves          %d boxes, over at most %s
predicted      %s
plan           %x
`, s.State, plural.Of(len(p.Dst.Tensors), "tensor"), s.Bytes, s.Bound, s.Busiest, s.BusiestBound, slices.Max(s.Extra), slices.Max(s.Memory), moves,
		plural.Of(s.Depth, "hop"), predicted, hash)
	return err
}

// linkSeconds returns how many seconds the links are busy with a plan, which is as long as its
// busiest host is; nil if their rate is not given, unless nothing moves, which takes 0.
func linkSeconds(s *plan.Stats, links cli.Rate) *float64 {
	seconds := 0.0
	if links > 0 {
		seconds = float64(s.Busiest) / float64(links)
	} else if s.Busiest > 0 {
		return nil
	}
	return &seconds
}
