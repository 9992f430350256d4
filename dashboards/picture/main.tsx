// Renders one board with Grafana's panel components: /?board=keyward-overview&from=UNIX&to=UNIX&theme=light
// It supports only what Keyward's boards use: stat, timeseries and bargauge panels of Prometheus queries.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import React, { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dateTime, FieldType, getDisplayValueAlignmentFactors, getFieldDisplayValues, identityOverrideProcessor, numberOverrideProcessor,
  standardFieldConfigEditorRegistry, thresholdsOverrideProcessor, ThemeContext, unitOverrideProcessor, FieldConfigOptionsRegistry,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, PortalContainer, TimeSeries, UPlotConfigBuilder, VizRepeater } from '@grafana/ui';

const params = new URLSearchParams(location.search);
const from = Number(params.get('from')), to = Number(params.get('to'));
const theme = createTheme({ colors: { mode: params.get('theme') === 'light' ? 'light' : 'dark' } });
const step = Math.max(1, Math.round((to - from) / 400)), range = `${Math.max(15, 4 * step)}s`;
const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) } };
const chosen: Record<string, string> = { cluster: '.*', namespace: '.*', job: '.*', instance: '.*', domain: '.*', rls: 'keyward|ratelimit.*', __rate_interval: range };
const shown: Record<string, string> = { domain: 'All', rls: 'keyward' };
const replace = (s: string, by: Record<string, string>) => s.replace(/\$(\w+)/g, (all, name) => by[name] ?? all);

// Grafana's application fills this registry. Without it no field has a unit, a color or a threshold.
const property = (id: string, process: any = identityOverrideProcessor) =>
  ({ id, path: id, name: id, process, override: null as any, editor: null as any, settings: {}, shouldApply: () => true });
standardFieldConfigEditorRegistry.setInit(() => [
  property('unit', unitOverrideProcessor), property('min', numberOverrideProcessor), property('max', numberOverrideProcessor),
  property('decimals', numberOverrideProcessor), property('displayName'), property('noValue'), property('color'),
  property('thresholds', thresholdsOverrideProcessor), property('mappings'), property('links'), property('filterable'),
] as any);

async function ask(expr: string) {
  const q = new URLSearchParams({ query: replace(expr, chosen), start: String(from), end: String(to), step: String(step) });
  const body = await (await fetch(`/api/v1/query_range?${q}`)).json();
  if (body.status !== 'success') throw new Error(`${body.error}: ${expr}`);
  return body.data.result as { metric: Record<string, string>; values: [number, string][] }[];
}

const legend = (format: string, labels: Record<string, string>) =>
  format ? format.replace(/\{\{(\w+)\}\}/g, (_, l) => labels[l] ?? '') : undefined;

async function framesOf(panel: any) {
  const raw = [];
  for (const target of panel.targets)
    for (const series of await ask(target.expr)) {
      const at = new Map(series.values.map(([t, v]) => [t, Number.isFinite(Number(v)) ? Number(v) : null]));
      const times = Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => from + i * step);
      raw.push({
        refId: target.refId, length: times.length,
        fields: [
          { name: 'Time', type: FieldType.time, config: {}, values: times.map((t) => t * 1000) },
          { name: 'Value', type: FieldType.number, labels: {}, values: times.map((t) => at.get(t) ?? null),
            config: { displayNameFromDS: legend(target.legendFormat, series.metric), custom: panel.fieldConfig.defaults.custom } },
        ],
      });
    }
  const frames = applyFieldOverrides({
    data: raw as any, fieldConfig: panel.fieldConfig, theme, timeZone: 'utc', replaceVariables: (s: string) => s,
    fieldConfigRegistry: standardFieldConfigEditorRegistry as FieldConfigOptionsRegistry,
  });
  frames.forEach((f) => { f.fields[1].config.custom = panel.fieldConfig.defaults.custom; });
  return frames;
}

// Marks are the times of the board's annotations, without duplicates.
function Marks({ builder, marks }: { builder: UPlotConfigBuilder; marks: { time: number; color: string }[] }) {
  React.useMemo(() => builder.addHook('draw', (u) => {
    for (const m of marks) {
      const x = Math.round(u.valToPos(m.time * 1000, 'x', true));
      u.ctx.save();
      u.ctx.strokeStyle = u.ctx.fillStyle = theme.visualization.getColorByName(m.color);
      u.ctx.setLineDash([4, 4]);
      u.ctx.beginPath(); u.ctx.moveTo(x, u.bbox.top); u.ctx.lineTo(x, u.bbox.top + u.bbox.height); u.ctx.stroke();
      u.ctx.restore();
    }
  }), [builder]);
  return null;
}

function Panel({ panel, width, height, marks }: any) {
  const [frames, setFrames] = useState<any[]>();
  useEffect(() => { framesOf(panel).then((f) => { setFrames(f); pending--; }); }, []);
  const body = (w: number, h: number) => {
    if (!frames) return <></>;
    if (!frames.length) return <div style={{ color: theme.colors.text.secondary, textAlign: 'center', paddingTop: h / 2 - 12 }}>No data</div>;
    if (panel.type === 'timeseries')
      return <TimeSeries frames={frames} width={w} height={h} timeRange={timeRange} timeZone="utc" legend={panel.options.legend} options={panel.options}>
        {(builder) => <Marks builder={builder} marks={marks} />}
      </TimeSeries>;
    const values = () => getFieldDisplayValues({
      fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (s) => s, theme, data: frames,
      sparkline: panel.type === 'stat' && panel.options.graphMode !== 'none', timeZone: 'utc',
    });
    return <VizRepeater source={frames} getValues={values} width={w} height={h} orientation={panel.options.orientation} itemSpacing={6}
      maxVizHeight={panel.options.maxVizHeight} getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, width, height, count, alignmentFactors }: any) => panel.type === 'stat'
        ? <BigValue value={{ ...value.display, title: count > 1 ? value.display.title : '' }} width={width} height={height} theme={theme} count={count} sparkline={value.sparkline}
            colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} justifyMode={panel.options.justifyMode} textMode={panel.options.textMode} />
        : <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} width={width} height={height} theme={theme}
            orientation={panel.options.orientation} displayMode={panel.options.displayMode} valueDisplayMode={panel.options.valueMode} namePlacement={panel.options.namePlacement}
            showUnfilled itemSpacing={8} lcdCellWidth={12} alignmentFactors={alignmentFactors} />} />;
  };
  return <PanelChrome title={replace(panel.title, shown)} description={panel.description} width={width} height={height} padding={panel.type === 'timeseries' ? 'sm' : 'md'}>{body}</PanelChrome>;
}

let pending = 1;

function Board({ board }: any) {
  const [marks, setMarks] = useState<any[]>();
  useEffect(() => {
    const events = board.annotations.list.filter((a: any) => a.expr).map(async (a: any) =>
      (await ask(a.expr)).flatMap((s) => s.values.map(([t]) => t).filter((t, i, all) => i === 0 || t > all[i - 1] + 2 * step).map((time) => ({ time, color: a.iconColor }))));
    Promise.all(events).then((m) => { pending += board.panels.filter((p: any) => p.type !== 'row').length - 1; setMarks(m.flat()); });
  }, []);
  const width = 1600, column = (width - 16) / 24, row = 38;
  const bottom = Math.max(...board.panels.map((p: any) => p.gridPos.y + p.gridPos.h));
  const pill = { border: `1px solid ${theme.colors.border.medium}`, padding: '3px 8px', borderRadius: 2, marginRight: 8, fontSize: 12 };
  return <div style={{ width, background: theme.colors.background.canvas, color: theme.colors.text.primary, padding: 8 }}>
    <div style={{ height: 34, fontSize: 18 }}>{board.title}</div>
    <div style={{ height: 34 }}>{board.templating.list.map((v: any) => <span key={v.name} style={pill}>{v.label} <b>{v.name === 'datasource' ? 'Prometheus' : shown[v.name] ?? 'All'}</b></span>)}</div>
    <div style={{ position: 'relative', height: bottom * row }}>
      {marks && board.panels.map((p: any) => {
        const { x, y, w, h } = p.gridPos, place: any = { position: 'absolute', left: x * column, top: y * row };
        if (p.type === 'row') return <div key={p.id} style={{ ...place, paddingTop: 10, fontWeight: 500 }}>⌄ {replace(p.title, shown)}</div>;
        return <div key={p.id} style={place}><Panel panel={p} width={w * column - 8} height={h * row - 8} marks={marks} /></div>;
      })}
    </div>
  </div>;
}

Promise.all(['400', '500'].map((w) => document.fonts.load(`${w} 12px Inter`)))
  .then(() => fetch(`/boards/${params.get('board')}.json`)).then((r) => r.json()).then((board) => {
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={theme}><GlobalStyles /><PortalContainer /><Board board={board} /></ThemeContext.Provider>);
  const done = setInterval(() => { if (pending === 0) { clearInterval(done); setTimeout(() => { document.title = 'drawn'; }, 1500); } }, 100);
});
