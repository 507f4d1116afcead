package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/decide/planner/importer"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/plural"
)

// shoal plan import. One goroutine runs what is here, that of the command, so nothing is locked. It
// reads and writes files.

// newImportCommand returns the command shoal plan import.
func newImportCommand() *cobra.Command {
	var out, clusterOut, name, hosts string
	var sources strings.Builder
	names := []string{"sailor"}
	for _, s := range importer.Sources() {
		fmt.Fprintf(&sources, "  %-12s %s\n", s.Name, s.What)
		names = append(names, s.Name)
	}
	fmt.Fprintf(&sources, "  %-12s %s\n", "sailor", "the folder of Sailor's profiles, with --name "+
		"of a model and --hosts")
	cmd := &cobra.Command{
		Use:   "import SOURCE FILE -o MODEL",
		Short: "Make a model from the measurements of another planner",
		Long: cli.Help(`Make a model from the measurements of another planner. What such files are known to
have wrong or to leave out is replaced by rules, and each that was used is told. Sources are

`+sources.String(), cli.ExitCodes, "plans"),
		Example: `  shoal plan import pipedream graph.txt -o gnmt.model.json
  shoal plan gnmt.model.json --cluster cluster.json --batch 32   plan what was imported
  shoal plan import sailor data --name OPT-350 --hosts A100-40=8 -o opt.json --cluster-out c.json
  shoal plan import --help                                       which sources there are`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := cli.RefuseEmpty(cmd.Flags(), "out", "cluster-out", "name", "hosts")
			if err != nil {
				return err
			}
			all := importer.Sources()
			at := slices.IndexFunc(all, func(s importer.Source) bool { return s.Name == args[0] })
			switch {
			case args[0] == "sailor" && (out == "" || name == ""):
				return cli.Usagef("say of which model, and where it goes: --name OPT-350 " +
					"-o x.model.json")
			case args[0] == "sailor":
				source, files, err := sailorSource(args[1], name, hosts)
				if err != nil {
					return err
				}
				return importFile(cmd.OutOrStdout(), source, files, out, clusterOut)
			case at < 0:
				return cli.Usagef("there is no source %q: choose one of %s; shoal plan import "+
					"--help says what each is", args[0], strings.Join(names, ", "))
			case name != "" || hosts != "":
				return cli.Usagef("--name and --hosts are for sailor")
			case out == "":
				return cli.Usagef("say where the model goes: -o x.model.json")
			}
			return importFile(cmd.OutOrStdout(), all[at], args[1:], out, clusterOut)
		},
	}
	cmd.Flags().StringVarP(&out, "out", "o", "", "write the model to this file")
	cmd.Flags().StringVar(&clusterOut, "cluster-out", "",
		"write the machines to this file, if the source has them")
	cmd.Flags().StringVar(&name, "name", "", "which model, where the source has several")
	cmd.Flags().StringVar(&hosts, "hosts", "",
		"how many hosts of each kind of device, such as A100-40=8,V100-16=4")
	return cmd
}

// sailorSource returns the source that reads profiles of Sailor with the other files of its folder,
// and the paths of all of these, that of the profiles first.
func sailorSource(folder, name, hosts string) (s importer.Source, paths []string, err error) {
	var files importer.SailorFiles
	paths = []string{filepath.Join(folder, "profiles_tmp.json")}
	for file, into := range map[string]*[]byte{"llm_info.json": &files.Info,
		"bandwidth/network_coeffs_all_homo.json":  &files.Network,
		"bandwidth/multizone_bandwidths_het.json": &files.Mixed,
		"configs/basic_cluster_config.json":       &files.Config} {
		path := filepath.Join(folder, file)
		if *into, err = durable.Read(path, importer.MaxBytes); err != nil {
			return s, nil, cli.AsUsage(err)
		}
		paths = append(paths, path)
	}
	var list []importer.SailorHosts
	for _, item := range strings.Split(hosts, ",") {
		kind, text, _ := strings.Cut(item, "=")
		count, err := strconv.Atoi(text)
		if err != nil || kind == "" {
			return s, nil, cli.Usagef("--hosts=%s: say how many hosts of each kind, such as "+
				"A100-40=8,V100-16=4", hosts)
		}
		list = append(list, importer.SailorHosts{Kind: kind, Count: count})
	}
	s.Name = "sailor"
	s.Read = func(text []byte) (*importer.Imported, error) {
		files.Profiles = text
		return importer.Sailor(files, name, list)
	}
	return s, paths, nil
}

// importFile reads the first of the files of a source, which has read the others, writes what they
// have, and tells what was changed.
func importFile(to io.Writer, source importer.Source, files []string, out,
	clusterOut string) error {
	file, pairs := files[0], [][4]string{{"-o", out, "--cluster-out", clusterOut}}
	for _, read := range files {
		pairs = append(pairs, [4]string{"-o", out, "what is read", read},
			[4]string{"--cluster-out", clusterOut, "what is read", read})
	}
	err := cmp.Or(cli.RefuseSame(pairs), cli.CheckOutput("-o", out),
		cli.CheckOutput("--cluster-out", clusterOut))
	if err != nil {
		return err
	}
	_, got, err := cli.ReadFile(file, importer.MaxBytes, source.Read)
	if err != nil {
		return err
	}
	if clusterOut != "" && got.Cluster == nil {
		return cli.Usagef("--cluster-out=%s: %s has no machines", clusterOut, file)
	}
	if err := writeJSON(out, got.Model); err != nil {
		return err
	}
	if clusterOut != "" {
		if err := writeJSON(clusterOut, got.Cluster); err != nil {
			return err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", out, plural.Of(len(got.Model.Layers), "layer"))
	for _, quirk := range got.Quirks {
		fmt.Fprintf(&b, "- %s\n", quirk)
	}
	_, err = io.WriteString(to, b.String())
	return err
}

// writeJSON writes a value to a file.
func writeJSON(file string, value any) error {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err
	}
	return durable.Write(file, append(text, '\n'))
}
