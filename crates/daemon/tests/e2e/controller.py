"""A small SDN controller for os-ken: the first packet of a connection makes entries for it.

Packets from port `c` go through the chain `there`, packets from port `s` through `back`.
Events go to the file that CONTROLLER_LOG names, one JSON object a line.
"""

import json
import os

from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import ethernet, ipv4, packet, tcp
from os_ken.ofproto import ofproto_v1_3

IDLE_S = 2


class PerFlow(app_manager.OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log = open(os.environ["CONTROLLER_LOG"], "a")
        self.ports = {}

    def note(self, what, **more):
        self.log.write(json.dumps({"what": what, **more}) + "\n")
        self.log.flush()

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, event):
        switch = event.msg.datapath
        self.note("features", datapath_id=event.msg.datapath_id, tables=event.msg.n_tables)
        switch.send_msg(switch.ofproto_parser.OFPPortDescStatsRequest(switch, 0))
        switch.send_msg(switch.ofproto_parser.OFPDescStatsRequest(switch, 0))

    @set_ev_cls(ofp_event.EventOFPDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def desc(self, event):
        self.note("desc", manufacturer=event.msg.body.mfr_desc.decode())

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def port_descs(self, event):
        switch = event.msg.datapath
        ofproto, parser = switch.ofproto, switch.ofproto_parser
        self.ports.update({p.name.decode(): p.port_no for p in event.msg.body})
        self.note("ports", ports=self.ports)
        ask = [parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)]
        self.add(switch, 0, parser.OFPMatch(), ask, 0)
        switch.send_msg(parser.OFPBarrierRequest(switch))

    def add(self, switch, priority, match, actions, idle):
        ofproto, parser = switch.ofproto, switch.ofproto_parser
        switch.send_msg(
            parser.OFPFlowMod(
                switch,
                priority=priority,
                match=match,
                idle_timeout=idle,
                flags=ofproto.OFPFF_SEND_FLOW_REM,
                instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)],
            )
        )

    @set_ev_cls(ofp_event.EventOFPBarrierReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def ready(self, event):
        self.note("ready")

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event):
        message, switch = event.msg, event.msg.datapath
        ofproto, parser = switch.ofproto, switch.ofproto_parser
        in_port = message.match["in_port"]
        chain = self.ports["there"] if in_port == self.ports["c"] else self.ports["back"]
        out = [parser.OFPActionOutput(chain)]
        seen = packet.Packet(message.data)
        ip, segment = seen.get_protocol(ipv4.ipv4), seen.get_protocol(tcp.tcp)
        if segment:
            match = parser.OFPMatch(
                in_port=in_port,
                eth_type=0x0800,
                ip_proto=6,
                ipv4_src=ip.src,
                ipv4_dst=ip.dst,
                tcp_src=segment.src_port,
                tcp_dst=segment.dst_port,
            )
            self.add(switch, 100, match, out, IDLE_S)
            self.note("flow", src_port=segment.src_port, dst_port=segment.dst_port, chain=chain)
        else:
            kind = seen.get_protocol(ethernet.ethernet).ethertype
            self.add(switch, 10, parser.OFPMatch(in_port=in_port, eth_type=kind), out, IDLE_S)
            self.note("kind", ethertype=kind, chain=chain)
        data = None if message.buffer_id != ofproto.OFP_NO_BUFFER else message.data
        switch.send_msg(
            parser.OFPPacketOut(switch, buffer_id=message.buffer_id, in_port=in_port, actions=out, data=data)
        )

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def removed(self, event):
        message = event.msg
        self.note("removed", dst_port=message.match.get("tcp_dst", 0), packets=message.packet_count, reason=message.reason)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def error(self, event):
        self.note("error", type=event.msg.type, code=event.msg.code)


if __name__ == "__main__":
    import sys

    from os_ken import cfg, log
    from os_ken.controller import controller  # noqa: F401  it defines the listener's options

    log.early_init_log()
    cfg.CONF(args=sys.argv[1:], project="os_ken", version="1")
    log.init_log()
    # os-ken finds the application by its module's name.
    sys.modules["controller"] = sys.modules[__name__]
    app_manager.AppManager.run_apps(["os_ken.controller.ofp_handler", "controller"])
